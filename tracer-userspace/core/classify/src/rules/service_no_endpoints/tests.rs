use std::net::IpAddr;
use tracer_core::testing::*;

use tracer_model::event::path::{Asks, BaseChain, Onward, Path, Step};
use tracer_model::query::Query;

fn services(ready: &[&str], not_ready: &[&str]) -> ObservationKind {
    let addrs = |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|it| address(it)).collect() };
    ObservationKind::Services(Services {
        services: vec![Service {
            namespace: "shop".into(),
            name: "cart".into(),
            cluster_ips: addrs(&["10.96.0.9"]),
            ports: vec![ServicePort { name: None, port: 80, node_port: None }],
            ready_endpoints: Some(addrs(ready)),
            not_ready_endpoints: addrs(not_ready),
            ..Service::default()
        }],
    })
}

fn kube_proxy(netns: Netns, chain: &str, verdict: RuleVerdict, comment: &str) -> ObservationKind {
    firewall(netns, vec![FirewallRule { comment: Some(comment.into()), ..rule(chain, verdict) }])
}

fn pod_at(addr: &str) -> ObservationKind {
    let pod = Pod { addrs: vec![address(addr)], ..Pod::default() };
    ObservationKind::Pods(Pods { pods: vec![pod] })
}

/// kube-proxy drops the SYN where only other nodes have endpoints.
fn dropped_in(chain: &str, known: Vec<ObservationKind>) -> VerdictBody {
    let mut stream = Stream::to("10.96.0.9:80");
    known.into_iter().for_each(|kind| _ = stream.push(kind));
    let rule = kube_proxy(NODE, chain, RuleVerdict::Drop, "shop/cart:http has no local endpoints");
    stream.connect().filtered(SYN, NODE).push(rule).gives_up().verdicts().pop().expect("a verdict")
}

/// Cilium's programs at cgroup/connect.
#[test]
fn a_connect_that_is_refused_at_once_is_explained_by_the_list() {
    let reported = |errno, before: Option<ObservationKind>| {
        let mut stream = Stream::to("10.96.0.9:80");
        before.into_iter().for_each(|kind| _ = stream.push(kind));
        stream.connect_failed(errno).causes()
    };
    assert_eq!(reported(libc::EHOSTUNREACH, Some(services(&[], &[]))), ["service_no_endpoints"]);
    assert_eq!(reported(libc::EPERM, Some(services(&[], &[]))), ["service_no_endpoints"]);
    assert_eq!(reported(libc::EPERM, Some(services(&["10.88.0.7"], &[]))), ["network_policy_drop"]);
    assert_eq!(reported(libc::EHOSTUNREACH, None), ["route_unreachable"]);
}

#[test]
fn a_firewall_that_surely_stopped_the_syn_is_the_cause_though_the_service_is_empty() {
    let decided = |chain: &str, exact: bool| {
        let mut stream = Stream::to("10.96.0.9:80").push(services(&[], &["10.88.0.1"])).clone();
        let rules = vec![FirewallRule { exact, ..rule(chain, RuleVerdict::Drop) }];
        stream.connect().filtered(SYN, NODE).push(firewall(NODE, rules)).gives_up().decided()
    };
    assert_eq!(decided("deny", true), ("firewall_drop", Confidence::Proven));
    assert_eq!(decided("deny", false), ("service_no_endpoints", Confidence::Likely));
    assert_eq!(decided("KUBE-SERVICES", true), ("service_no_endpoints", Confidence::Likely));
}

#[test]
fn without_rules_an_empty_service_in_the_list_is_possible() {
    let stream = Stream::to("10.96.0.9:80").push(services(&[], &["10.88.0.1"])).connect().gives_up().clone();
    assert_eq!(stream.decided(), ("service_no_endpoints", Confidence::Possible));
    let stream = Stream::to("10.96.0.9:80").push(services(&["10.88.0.7"], &[])).connect().gives_up().clone();
    assert_eq!(stream.causes(), ["unexplained"]);
}

#[test]
fn a_service_with_endpoints_elsewhere_is_reported_by_its_traffic_policy() {
    let verdict = dropped_in("KUBE-SERVICES", vec![]).verdict;
    assert_eq!((verdict.cause.name(), verdict.confidence), ("service_no_endpoints", Confidence::Proven));
    assert_has(&verdict.summary, &["no endpoint on this node (internalTrafficPolicy: Local);"]);
    assert_has(&verdict.remediation, &["on this node", "internalTrafficPolicy to Cluster"]);
    let outside = dropped_in("KUBE-EXTERNAL-SERVICES", vec![]).verdict.summary;
    assert_has(&outside, &["(externalTrafficPolicy: Local)"]);
    let either = dropped_in("service-endpoints-check", vec![]).verdict.summary;
    assert_has(&either, &["(externalTrafficPolicy or internalTrafficPolicy: Local)"]);
}

#[test]
fn the_list_of_services_has_the_number_of_endpoints_and_the_owner_of_the_policy() {
    let known = |ready: &[&str]| dropped_in("service-endpoints-check", vec![services(ready, &[])]).verdict;
    let elsewhere = known(&["10.88.1.7", "10.88.2.7"]).summary;
    assert_has(&elsewhere, &["(internalTrafficPolicy: Local; 2 ready in the cluster)"]);
    let nowhere = known(&[]);
    assert_has(&nowhere.summary, &["no ready endpoint;"]);
    assert_starts(&nowhere.remediation, "No pod is an endpoint, not even one that is not ready.");
    let not_ready = dropped_in("service-endpoints-check", vec![services(&[], &["10.88.1.7"])]).verdict;
    assert_starts(&not_ready.remediation, "Make an endpoint of the Service ready");
}

#[test]
fn a_circular_dependency_is_fixed_first_whatever_the_policy() {
    let verdict =
        dropped_in("KUBE-SERVICES", vec![services(&["10.88.1.7"], &["10.88.0.1"]), pod_at("10.88.0.1")]).verdict;
    assert_has(&verdict.summary, &["on this node", "circular"]);
    assert_starts(&verdict.remediation, "Do not gate");
}

#[test]
fn rules_that_do_not_agree_show_only_that_none_is_ready() {
    let mut stream = Stream::to("10.96.0.9:80");
    let named = |what: &str| FirewallRule {
        comment: Some(format!("shop/cart:http has no {what}")),
        exact: false,
        ..rule("KUBE-SERVICES", RuleVerdict::Drop)
    };
    let both = firewall(NODE, vec![named("local endpoints"), named("endpoints")]);
    stream.connect().filtered(SYN, NODE).push(both).gives_up();
    let verdict = stream.verdict();
    assert_has(&verdict.summary, &["no ready endpoint;"]);
}

#[test]
fn ipvs_without_a_backend_though_endpoints_are_ready_hints_at_the_policy() {
    let empty = |ready: &[&str], pod: &str| {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.push(services(ready, &[])).push(pod_at(pod)).connect().ipvs(SYN, IpvsOp::NoBackend).verdict()
    };
    let elsewhere = empty(&["10.88.1.7"], "10.88.0.7");
    assert_eq!((elsewhere.cause.name(), elsewhere.confidence), ("service_no_endpoints", Confidence::Likely));
    assert_has(&elsewhere.summary, &["(internalTrafficPolicy: Local; 1 ready in the cluster); IPVS"]);
    assert_has(&elsewhere.remediation, &["on this node"]);
    let behind = "no endpoint in the tables of this node, though 1 are ready in the cluster;";
    for (ready, reported, confidence) in
        [(&["10.88.0.7"][..], behind, Confidence::Likely), (&[], "no ready endpoint;", Confidence::Proven)]
    {
        let verdict = empty(ready, "10.88.0.7");
        assert_has(&verdict.summary, &[reported]);
        assert_eq!(verdict.confidence, confidence);
    }
}

/// `ip_vs_leave` means that no backend can be scheduled. Seen on 6.12: the only one was at its upper threshold.
#[test]
fn a_backend_at_its_upper_threshold_is_no_lack_of_endpoints() {
    let verdict = |table: Option<ObservationKind>| {
        let mut stream = Stream::to("10.96.0.9:80");
        table.into_iter().for_each(|table| _ = stream.push(table));
        stream.connect().ipvs(SYN, IpvsOp::NoBackend).verdict()
    };
    for table in [None, Some(without_backend(&["10.96.0.9:81"]))] {
        let unsure = verdict(table);
        assert_eq!((unsure.cause.name(), unsure.confidence), ("service_no_endpoints", Confidence::Likely));
        assert_has(&unsure.summary, &["has no endpoint for new connections;", "or is at its upper threshold"]);
        assert_lacks(&unsure.summary, &["no ready endpoint"]);
        assert_has(
            &unsure.remediation,
            &["raise its upper threshold (ipvsadm -e with -x; repeat its -m and -w", "ipvsadm -Ln --thresholds"],
        );
    }
    let none = verdict(Some(without_backend(&["10.96.0.9:80"])));
    assert_eq!((none.cause.name(), none.confidence), ("service_no_endpoints", Confidence::Proven));
    assert_has(&none.summary, &["has no ready endpoint; IPVS on the node has no backend that takes new connections"]);
}

/// No kprobes, as on the kernels that have tracepoints only.
#[test]
fn a_node_port_without_a_backend_in_the_table_of_ipvs_is_no_firewall_reject() {
    let reported = |hook: Hook, backends: &[&str], rules: Vec<FirewallRule>| {
        let mut stream = Stream::to("10.88.0.1:30080");
        stream.missing(hook).links(true, &["10.88.0.1"]).node_port(ProxyMode::Ipvs, 30_080, backends).connect();
        stream.icmp_in(NODE, 3, 3).filtered(SYN, NODE).push(firewall(NODE, rules));
        stream.last_decided()
    };
    assert_eq!(reported(Hook::IpvsLeave, &[], vec![]), ("service_no_endpoints", Confidence::Likely));
    assert_eq!(reported(Hook::IpvsLeave, &["10.88.0.7:80"], vec![]), ("firewall_reject", Confidence::Possible));
    assert_eq!(
        reported(Hook::PutNet, &[], vec![]),
        ("firewall_reject", Confidence::Likely),
        "the hook would have reported it"
    );
    let deny = vec![rule("INPUT", RuleVerdict::Reject)];
    assert_eq!(reported(Hook::IpvsLeave, &[], deny), ("firewall_reject", Confidence::Proven));
}

/// The table of IPVS, in which these have no backend.
fn without_backend(addrs: &[&str]) -> ObservationKind {
    let without_backend = addrs.iter().map(|at| address(at)).collect();
    ObservationKind::NodePorts(NodePorts { without_backend, ..NodePorts::new(NODE, ProxyMode::Ipvs, Vec::new()) })
}

/// 5.10 without programs on functions: not even the error of IPVS is observed.
#[test]
fn without_a_hook_for_the_error_the_table_and_the_drop_decide() {
    let reported = |missing: &[Hook], without: &[&str]| {
        let mut stream = Stream::to("10.96.0.9:80");
        missing.iter().for_each(|hook| _ = stream.missing(*hook));
        stream.push(without_backend(without)).links(true, &["10.88.0.1"]).connect();
        stream.drop_with(SYN, NODE, |drop| drop.location = Some("nf_hook_slow".into()));
        stream.push(firewall(NODE, vec![])).gives_up().last_decided()
    };
    let both = &[Hook::IpvsLeave, Hook::IcmpSend];
    assert_eq!(reported(both, &["10.96.0.9:80"]), ("service_no_endpoints", Confidence::Likely));
    assert_eq!(reported(both, &[]).0, "firewall_drop", "it has a backend");
    assert_eq!(
        reported(&[Hook::IpvsLeave], &["10.96.0.9:80"]).0,
        "firewall_drop",
        "the error would have been reported"
    );
}

/// A Service's own address, which is no NodePort; also before the rules have been read.
#[test]
fn a_service_without_a_backend_in_the_table_of_ipvs_is_no_firewall_reject() {
    let reported_in = |netns, hook: Hook, without: &[&str], rules: Option<Vec<FirewallRule>>| {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.missing(hook).push(without_backend(without)).links(true, &["10.88.0.1"]).connect();
        stream.icmp_in(netns, 3, 3).filtered(SYN, netns);
        rules.into_iter().for_each(|rules| _ = stream.push(firewall(NODE, rules)));
        stream.gives_up().last_decided()
    };
    let reported = |hook: Hook, without: &[&str], rules| reported_in(NODE, hook, without, rules);
    let likely = ("service_no_endpoints", Confidence::Likely);
    assert_eq!(reported(Hook::IpvsLeave, &["10.96.0.9:80"], Some(vec![])), likely);
    assert_eq!(reported(Hook::IpvsLeave, &["10.96.0.9:80"], None), likely);
    assert_eq!(reported(Hook::IpvsLeave, &["10.96.0.9:81"], None), ("firewall_reject", Confidence::Possible));
    assert_eq!(
        reported(Hook::PutNet, &["10.96.0.9:80"], None),
        ("firewall_reject", Confidence::Likely),
        "the hook would have reported it, and no rule was read"
    );
    let in_pod = reported_in(POD, Hook::IpvsLeave, &["10.96.0.9:80"], None);
    assert_eq!(in_pod, ("firewall_reject", Confidence::Proven), "IPVS is the node's");
}

/// ip_vs was loaded after the start. tracer attaches its hooks some seconds later, if it can.
#[test]
fn a_hook_that_waits_for_its_module_is_missing_while_ipvs_is_in_use() {
    let reported = |attached_ms: Option<u64>, without: &[&str]| {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.awaits(Hook::IpvsLeave).push(without_backend(without)).links(true, &["10.88.0.1"]);
        let hooks_attached = || {
            let hooks = vec![Hook::IpvsLeave.name().to_owned()];
            ObservationKind::HooksAttached(HooksAttached { hooks })
        };
        if attached_ms == Some(0) {
            stream.push(hooks_attached()).wait_ms(1);
        }
        stream.connect().icmp_in(NODE, 3, 3).filtered(SYN, NODE);
        if attached_ms.is_some_and(|ms| ms > 0) {
            stream.wait_ms(1).push(hooks_attached());
        }
        let verdict = stream.gives_up().last_verdict();
        (verdict.cause.name(), verdict.confidence, verdict.missing_hooks.len())
    };
    let unseen = ("service_no_endpoints", Confidence::Likely, 1);
    assert_eq!([None, Some(1)].map(|attached| reported(attached, &["10.96.0.9:80"])), [unseen; 2]);
    let seen = ("firewall_reject", Confidence::Likely, 0);
    assert_eq!([reported(Some(0), &["10.96.0.9:80"]), reported(None, &[])], [seen; 2], "or there is no IPVS");
}

/// Cilium in place of kube-proxy, where it does not translate at the socket.
#[test]
fn a_syn_to_an_empty_service_that_a_program_drops_is_service_no_endpoints() {
    let reported = |flags, ready: &[&str]| {
        let mut stream = Stream::to("10.96.0.9:80");
        stream.push(services(ready, &[])).connect().drop(flags, "TC_INGRESS", NODE).gives_up().decided()
    };
    assert_eq!(reported(SYN, &[]), ("service_no_endpoints", Confidence::Likely));
    assert_eq!(reported(SYN, &["10.88.0.7"]), ("network_policy_drop", Confidence::Likely));
    assert_eq!(reported(SYN_ACK, &[]), ("network_policy_drop", Confidence::Likely), "somebody did answer");
}

/// A rule as kube-proxy 1.36 writes it and a reading lists it: a chain that several hooks share has no base chain.
fn of_kube_proxy_1_36(chain: &str, comment: &str, when: When) -> FirewallRule {
    FirewallRule {
        family: "ip".into(),
        table: "kube-proxy".into(),
        base: None,
        hooks: vec!["FORWARD".into(), "OUTPUT".into()],
        comment: Some(comment.into()),
        exact: false,
        priority: None,
        when: When { new: true, ..when },
        ..rule(chain, RuleVerdict::Reject)
    }
}

/// A rule on the node refuses the SYN, and these are read.
fn refused_by(stream: &mut Stream, rules: ObservationKind) -> Verdict {
    stream.connect().icmp_in(NODE, 3, 3).filtered(SYN, NODE).push(rules).gives_up().last_verdict()
}

/// To the Service.
fn to_cart() -> When {
    When { dst: Some(Prefix { addr: [10, 96, 0, 9].into(), len: 32 }), dport: Some(80), ..When::default() }
}

#[test]
fn the_rule_that_kube_proxy_checks_first_is_named() {
    let invalid = "Reject traffic to invalid ports of ClusterIPs";
    let last = of_kube_proxy_1_36("cluster-ips-check", invalid, When::default());
    let first = of_kube_proxy_1_36("service-endpoints-check", "shop/cart:http has no endpoints", to_cart());
    let reported = |rules| refused_by(&mut Stream::to("10.96.0.9:80"), firewall(NODE, rules));
    let empty = reported(vec![first, last.clone()]);
    assert_eq!((empty.cause.name(), empty.confidence), ("service_no_endpoints", Confidence::Proven));
    assert_starts(&empty.summary, "Service shop/cart:http at 10.96.0.9:80 has no ready endpoint");
    assert_lacks(&empty.summary, &["one of"]);
    let unknown = reported(vec![last]);
    assert_eq!(unknown.cause.name(), "service_no_endpoints");
    assert_starts(&unknown.summary, "no Service has port 80 at 10.96.0.9");
}

#[test]
fn a_service_that_only_the_list_has_shows_that_kube_proxy_is_behind() {
    let invalid = "Reject traffic to invalid ports of ClusterIPs";
    let check = of_kube_proxy_1_36("cluster-ips-check", invalid, When::default());
    let mut stream = Stream::to("10.96.0.9:80");
    stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]);
    let verdict = refused_by(&mut stream, firewall(NODE, vec![check]));
    assert_eq!((verdict.cause.name(), verdict.confidence), ("service_no_endpoints", Confidence::Likely));
    let words = "Service shop/cart has 10.96.0.9:80, and the rules on this node do not have it: kube-proxy's rule";
    assert_starts(&verdict.summary, words);
    assert_has(&verdict.remediation, &["kube-proxy on this node is behind", "k8s-app=kube-proxy"]);
}

/// Some rules were not read, or several rules may have stopped the packet.
#[test]
fn a_reject_of_kube_proxy_is_never_a_firewall_reject() {
    let reported = |rules: Vec<FirewallRule>, truncated| {
        let rules = firewall_with(NODE, rules, |it| it.truncated = truncated);
        let verdict = refused_by(&mut Stream::to("10.96.0.9:80"), rules);
        (verdict.cause.name(), verdict.confidence, verdict.summary)
    };
    let legacy = FirewallRule { backend: Backend::IptablesNft, ..rule("KUBE-SERVICES", RuleVerdict::Reject) };
    let comment = Some("shop/cart:http has no endpoints".into());
    let empty = FirewallRule { comment, when: to_cart(), exact: false, ..legacy.clone() };
    let filter = FirewallRule { chain: "KUBE-IPVS-FILTER".into(), ..legacy.clone() };
    let (cause, confidence, summary) = reported(vec![empty.clone(), filter.clone()], true);
    assert_eq!((cause, confidence), ("service_no_endpoints", Confidence::Likely));
    assert_starts(&summary, "Service shop/cart:http at 10.96.0.9:80 has no ready endpoint");
    let (cause, _, summary) = reported(vec![filter.clone()], false);
    assert_eq!(cause, "service_no_endpoints");
    assert_starts(&summary, "no Service has port 80 at 10.96.0.9");
    let of_router = FirewallRule { chain: "KUBE-ROUTER-SERVICES".into(), ..legacy.clone() };
    let (cause, _, summary) = reported(vec![of_router], false);
    assert_eq!(cause, "service_no_endpoints", "no policy");
    assert_starts(&summary, "no Service has port 80 at 10.96.0.9: kube-router's rule");
    assert_eq!(reported(vec![empty, FirewallRule { chain: "mine".into(), ..legacy }], false).0, "firewall_reject");
}

/// The rule looks up a set of addresses that is not read, so it fits each packet.
#[test]
fn kube_proxys_rule_for_all_cluster_ips_does_not_count_for_another_address() {
    let reported = |addrs: &[&str], truncated| {
        let of_ipvs = LinkState { up: false, ..link(9, "kube-ipvs0", addrs) };
        let filter = FirewallRule {
            backend: Backend::IptablesNft,
            exact: false,
            ..rule("KUBE-IPVS-FILTER", RuleVerdict::Reject)
        };
        let rules = firewall_with(NODE, vec![filter], |it| it.truncated = truncated);
        let verdict = refused_by(Stream::to("10.96.0.9:80").node_links(vec![of_ipvs]), rules);
        (verdict.cause.name(), verdict.confidence)
    };
    assert_eq!(reported(&["10.96.0.1"], true), ("firewall_reject", Confidence::Proven));
    let of_service = reported(&["10.96.0.1", "10.96.0.9"], true);
    assert_eq!(of_service, ("service_no_endpoints", Confidence::Likely));
    assert_eq!(reported(&["10.96.0.1"], false).0, "service_no_endpoints", "all was read, and nothing else fits");
}

/// Rules of kube-proxy 1.36 as a reading lists them. The walk decides, whatever the conditions of shared chains look
/// like.
#[test]
fn the_rule_at_which_the_walk_ends_decides() {
    let shared = |chain: &str, comment: &str| of_kube_proxy_1_36(chain, comment, When::default());
    let rules = vec![
        shared("cluster-ips-check", "Reject traffic to invalid ports of ClusterIPs"),
        shared("service-endpoints-check", "shop/cart:http has no endpoints"),
    ];
    let reported = |chains: Vec<BaseChain>, flow: &str| {
        let flow = Flow { src: address("10.88.0.1:0"), dst: address(flow) };
        let path = Some(Path { flow, chains, translates: true });
        let firewall = firewall_with(NODE, rules.clone(), |it| it.path = path);
        let verdict = refused_by(&mut Stream::to("10.96.0.9:80"), firewall);
        (verdict.cause.name(), verdict.confidence, verdict.summary)
    };
    let take = |rule| Step { asks: Asks::default(), then: Onward::Take(rule) };
    let output = |steps| vec![BaseChain { hook: "OUTPUT".into(), priority: 0, steps }];
    let (cause, confidence, summary) = reported(output(vec![take(0)]), "10.96.0.9:80");
    assert_eq!((cause, confidence), ("service_no_endpoints", Confidence::Proven));
    assert_starts(&summary, "no Service has port 80");
    let (_, confidence, summary) = reported(output(vec![take(1), take(0)]), "10.96.0.9:80");
    assert!(summary.starts_with("Service shop/cart:http") && confidence == Confidence::Proven, "{summary}");
    let (_, _, other) = reported(output(vec![take(0)]), "10.96.0.8:80");
    assert!(other.starts_with("Service shop/cart:http"), "the way of another flow says nothing: {other}");
}

/// A client on this node, where the cluster API answers queries. kube-proxy refuses its SYN.
fn asking() -> Stream {
    let mut stream = Stream::to("10.96.0.9:80");
    stream.start().asks_for_endpoints = true;
    stream.links(true, &[]).push(pod_at("10.88.0.1"));
    refuse(stream.connect(), NODE);
    stream
}

fn refuse(stream: &mut Stream, netns: Netns) {
    let rules = kube_proxy(netns, "KUBE-SERVICES", RuleVerdict::Reject, "shop/cart:http has no endpoints");
    stream.icmp_in(netns, 3, 3).filtered(SYN, netns).push(rules);
    stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
}

/// The queries for endpoints after these observations.
fn asked(stream: &Stream) -> usize {
    let mut core = tracer_core::core::Core::default();
    let pushed = stream.observations.iter().map(|observation| {
        core.push(observation, &mut Vec::new());
        core.take_queries()
    });
    let name = ServiceName { namespace: "shop".into(), name: "cart".into() };
    pushed.flatten().filter(|query| *query == Query::Endpoints(name.clone())).count()
}

#[test]
fn the_endpoints_of_the_one_service_show_that_the_dependency_is_circular() {
    let mut stream = asking();
    assert_eq!(asked(&stream), 1);
    let verdicts = stream.wait_ms(3).tick().endpoints(Some(&[]), &["10.88.0.1"]).verdicts();
    let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
    let verdict = &verdict.verdict;
    assert_eq!((verdict.cause.name(), verdict.confidence), ("service_no_endpoints", Confidence::Proven));
    assert_has(&verdict.summary, &["Service shop/cart:http at", "the dependency is circular"]);
    assert_starts(&verdict.remediation, "Do not gate");
    let row = verdict.evidence.iter().find(|row| row.hook == "cluster_api").expect("the answer");
    assert_eq!(row.text, "Service shop/cart has 0 ready endpoints, and 1 not ready");
}

/// Longhorn's manager has a readiness probe only, serves its webhook late, and waits for the Service of that webhook.
#[test]
fn a_late_start_in_a_circle_is_compared_with_the_readiness_probe() {
    let reported = |probes: fn(&mut Stream) -> &mut Stream| {
        let mut stream = Stream::to("10.96.0.9:80");
        probes(&mut stream).pod_in(POD).netns_made(POD).wait_ms(5_000);
        let started_boot_ns = Some(stream.seconds_ago(0));
        stream.runs(Runs { started_boot_ns, ..Runs::default() });
        stream.last_pods().pods[0].addrs = vec![address("10.88.0.1")];
        stream.wait_ms(25_000).listens(POD, 80, true).wait_ms(1_000).push(services(&[], &["10.88.0.1"]));
        refuse(stream.connect(), NODE);
        stream.verdict()
    };
    let verdict = reported(Stream::http_readiness);
    let words = "the dependency is circular; container app began to listen on port 80 25 s after its start; its readiness probe allows 30 s (initialDelaySeconds 0 + periodSeconds 10 x failureThreshold 3)";
    assert_has(&verdict.summary, &[words]);
    let probe = "startupProbe: {httpGet: {path: /, port: 80}, periodSeconds: 10, failureThreshold: 8} (allows 80 s)";
    assert_has(&verdict.remediation, &["publishNotReadyAddresses", probe]);
    let live = reported(|stream| stream.http_readiness().http_liveness_too());
    assert_ends(&live.summary, "the dependency is circular");
}

/// As for a webhook: the API server connects from the node's address, and so do other pods on its network.
#[test]
fn a_pod_on_the_network_of_the_node_is_not_taken_for_the_endpoint() {
    let mut stream = asking();
    let pod = Pod { addrs: vec![address("10.88.0.1")], host_network: true, ..Pod::default() };
    stream.push(ObservationKind::Pods(Pods { pods: vec![pod] })).endpoints(Some(&[]), &["10.88.0.1"]);
    assert_lacks(&stream.verdict().summary, &["circular"]);
}

#[test]
fn endpoints_that_are_ready_elsewhere_hint_at_kube_proxy() {
    let verdict = asking().endpoints(Some(&["10.88.1.7"]), &[]).verdict();
    assert_has(&verdict.summary, &["no endpoint in the tables of this node, though 1 are ready in the cluster"]);
    assert_starts(&verdict.remediation, "Compare the targetPort");
    assert_has(&verdict.remediation, &["kube-proxy on this node is behind"]);
}

#[test]
fn an_api_without_an_answer_costs_a_second_once_and_changes_no_verdict() {
    let without = |own: &[&str]| {
        let mut stream = asking();
        stream.push(services(&[], own)).verdict()
    };
    let known = without(&["10.88.1.7"]);
    let mut stream = asking();
    assert!(stream.clone().wait_ms(990).tick().verdicts_before_the_end().is_empty(), "it waits");
    let emitted = stream.wait_ms(1_001).tick().verdicts_before_the_end();
    assert_eq!(emitted.len(), 1);
    assert_eq!(emitted[0].verdict.cause.name(), "service_no_endpoints");
    assert_lacks(&emitted[0].verdict.summary, &["circular"]);
    assert_starts(&emitted[0].verdict.remediation, "Make an endpoint of the Service ready");
    assert_eq!(emitted[0].verdict.remediation, known.remediation);
    // The next attempt does not wait, and a late answer revises nothing.
    refuse(stream.wait_ms(5_000).again(8).connect(), NODE);
    assert_eq!(stream.wait_ms(3).tick().verdicts_before_the_end().len(), 2);
    assert_eq!(asked(&stream), 1);
    assert_eq!(stream.endpoints(Some(&[]), &["10.88.0.1"]).verdicts().len(), 2);
}

#[test]
fn a_failure_of_the_api_ends_the_wait() {
    let mut stream = asking();
    let emitted = stream.wait_ms(3).tick().endpoints(None, &[]).verdicts_before_the_end();
    assert_eq!(emitted.len(), 1);
    assert_lacks(&emitted[0].verdict.summary, &["circular"]);
}

#[test]
fn two_attempts_at_one_service_ask_once_and_both_wait() {
    let mut stream = asking();
    refuse(stream.again(8).connect(), NODE);
    assert_eq!(asked(&stream), 1);
    let verdicts = stream.wait_ms(3).tick().endpoints(Some(&[]), &["10.88.0.1"]).verdicts_before_the_end();
    assert_eq!(verdicts.iter().filter(|it| it.verdict.summary.contains("circular")).count(), 2);
}

#[test]
fn nothing_is_asked_where_the_answer_is_known_or_nobody_answers() {
    let mut stream = asking();
    stream.observations.insert(1, Observation { time_boot_ns: 1_000_000_500, kind: services(&[], &[]) });
    assert_eq!(asked(&stream), 0, "the list has it");
    let mut stream = asking();
    stream.start().asks_for_endpoints = false;
    assert_eq!(asked(&stream), 0);
    assert_eq!(stream.wait_ms(3).tick().verdicts_before_the_end().len(), 1, "and nothing waits");
}

/// A process in a pod can write any comment into the rules of its own namespace.
#[test]
fn a_rule_of_a_pod_makes_tracer_ask_nothing() {
    let mut stream = asking();
    stream.observations.truncate(3);
    refuse(stream.connect(), POD);
    assert_eq!((asked(&stream), stream.causes()), (0, vec!["service_no_endpoints"]));
}

/// A dual-stack Service. Its pods have addresses of one family only.
#[test]
fn endpoints_of_the_other_family_are_no_endpoints() {
    let verdict = |by_ipvs: bool| {
        let mut stream = Stream::to("[fd00:96::9]:80");
        let mut listed = services(&["10.88.1.7", "10.88.2.7"], &[]);
        if let ObservationKind::Services(services) = &mut listed {
            services.services[0].cluster_ips.push(address("fd00:96::9"));
        }
        stream.push(listed).connect();
        if by_ipvs {
            stream.ipvs(SYN, IpvsOp::NoBackend)
        } else {
            stream.filtered(SYN, NODE).gives_up()
        };
        stream.verdict()
    };
    for (by_ipvs, confidence) in [(true, Confidence::Proven), (false, Confidence::Likely)] {
        let verdict = verdict(by_ipvs);
        assert_eq!((verdict.cause.name(), verdict.confidence), ("service_no_endpoints", confidence));
        let words = "no ready endpoint of this address family, though 2 of the other one are ready in the cluster;";
        assert_has(&verdict.summary, &[words]);
        assert_has(&verdict.remediation, &["ipFamilies"]);
        assert_lacks(&verdict.remediation, &["internalTrafficPolicy"]);
    }
}
