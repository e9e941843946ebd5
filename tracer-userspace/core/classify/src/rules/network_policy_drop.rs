//! The enforcement of network policies stopped the packets: a chain of the CNI, or a tc, XDP or cgroup program.

use super::*;
use tracer_case::netfilter::blocked;
use tracer_case::owner::own_fix;
use tracer_case::programs::{
    CGROUP_EGRESS, FLOWS, NETKIT, Programs, SHOW_DROPS, SOCKET_FILTER, dropped, list_own_policies, list_policies,
    ovs_reason,
};
use tracer_case::queue;
use tracer_model::event::PacketDrop;

const ALLOW: &str = "allow the node's address (probes come from it), or the client, on that port";

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    by_chain(case).or_else(|| by_program(case)).or_else(|| queue::by_policy(case, ALLOW)).or_else(|| by_connect(case))
}

/// All rules that can have dropped the packet are in chains of one owner, which enforces policies.
fn by_chain(case: &Case<'_>) -> Option<Finding> {
    let blocked = blocked(case)?;
    let blame = blocked.blame.as_ref()?;
    let owner = blame.owner().filter(|owner| owner.policy)?;
    // The reverse-path check of the same owner is no policy, nor is its redirect to a proxy, nor a rule of its own.
    let is_policy = !blame.is_reverse_path()
        && !blame.rules.iter().any(|rule| rule.proxy_port.is_some())
        && !blame.all(|rule| own_fix(rule).is_some());
    (is_policy && blame.all(|rule| blame.owner_of(rule) == Some(owner))).then_some(())?;
    if is_own_probe(case) && blocked.answer_dropped(case).is_some() {
        return Some(of_own_answer(case, blocked, owner.name));
    }
    let is_certain = blame.certain().is_some() && !blocked.may_be_flooded(case);
    let confidence = if is_certain { Confidence::Proven } else { Confidence::Likely };
    let summary = format!("the network policy of {}{}{}", owner.name, blocked.action(case), blocked.words());
    let remediation = Remediation::from(format!("In the network policies, {ALLOW}"))
        .run([list_policies()])
        .run(list_own_policies(owner.name))
        .run(blocked.show_rules(case));
    Some(blocked.finding(case, Cause::NetworkPolicyDrop, summary, remediation).with_confidence(confidence))
}

/// The rule stopped a pod's answer to a probe of its own node. A NetworkPolicy lets answers pass, and does not apply to
/// that traffic at all.
fn of_own_answer(case: &Case<'_>, blocked: &Blocked<'_>, owner: &str) -> Finding {
    let (untracked, find) = blocked.untracked(case).unzip();
    let summary = format!(
        "a rule of {owner}{}{}{}{OF_ANSWER}",
        blocked.action(case),
        blocked.words(),
        untracked.unwrap_or_default()
    );
    let remediation = Remediation::from(format!(
        "Find why the rule stops the answer. Possible reasons: {WHY_ANSWER}. The log of {owner}'s agent on this node may say it"
    ))
    .run(find.into_iter().flatten())
    .run(blocked.show_rules(case));
    let found = blocked.finding(case, Cause::NetworkPolicyDrop, summary, remediation);
    found.with_confidence(Confidence::Likely)
}

const OF_ANSWER: &str = "; the packet is an answer to the node's own probe, which no NetworkPolicy stops. A policy of another kind does, or an error of the dataplane";
const WHY_ANSWER: &str = "an untracked or invalid connection, an unexpected node address or route, a stale chain";

/// A program dropped a packet that the attempt needs.
fn by_program(case: &Case<'_>) -> Option<Finding> {
    let (time, drop, program) = dropped(case)?;
    let own = is_own_probe(case);
    let there = Programs::at(case, time, drop);
    let names = there.as_ref().and_then(Programs::names);
    let is_by_filter = names.is_none() && there.as_ref().is_some_and(Programs::is_at_tc);
    let is_named = names.is_some();
    let names = names.map(|names| format!("; programs there: {names}"));
    let names = names.unwrap_or_else(|| if is_by_filter { OTHER_FILTER } else { "" }.to_owned());
    let summary = format!("{}{names}{}", describe_drop(case, drop, program), if own { NO_NETWORK_POLICY } else { "" });

    let first = |text: &str| Remediation::from(format!("{text}. If it is a policy, {ALLOW}"));
    let of_owner = there.as_ref().and_then(|it| it.fix(case));
    let remediation = match (of_owner, drop.reason.as_deref()) {
        (Some((text, commands)), _) => first(&text).run(commands),
        (None, Some(CGROUP_EGRESS)) => at_cgroup(outbound(case, drop)).into(),
        (None, Some(SOCKET_FILTER)) => format!("{}. {OTHER_SOCKET_FILTERS}", at_cgroup(!outbound(case, drop))).into(),
        (None, _) if is_named => first(PROGRAM).run(show_program(case, drop)),
        (None, _) if is_by_filter => first(FILTER).run(show_program(case, drop)),
        (None, Some("TC_INGRESS" | "TC_EGRESS")) => {
            first(&format!("{MONITOR}. A filter that redirects to a device that is down (mirred) drops, too"))
                .run([Command::in_pod(SHOW_DROPS)])
        }
        (None, _) if ovs_reason(drop).is_some() => {
            first(FLOWS).run([Command::in_pod("ovs-appctl dpctl/dump-flows | grep drop")])
        }
        (None, _) => first(MONITOR).run([Command::in_pod(SHOW_DROPS)]),
    };
    // Policies of the cluster are not enforced at cgroups and sockets.
    let is_of_cluster = !own && !matches!(drop.reason.as_deref(), Some(CGROUP_EGRESS | SOCKET_FILTER));
    let remediation = remediation.run(is_of_cluster.then(list_policies)).run(show_program(case, drop));
    let mut found = Finding::failure(Cause::NetworkPolicyDrop, vec![of_drop(time, drop)], summary, remediation);
    // After the time of the decision was set, which is that of the drop.
    found.evidence.extend(there.as_ref().and_then(Programs::evidence));
    found.lacks_programs = there.is_none();
    // A program drops for its errors and limits (a full table, an unknown pod), too, and the kernel has one reason for
    // all.
    Some(found.with_confidence(Confidence::Likely).rests_on_lost_packet())
}

/// Commands that show the program. They run in the namespace of the device, since its name is valid there only.
fn show_program(case: &Case<'_>, drop: &PacketDrop) -> Vec<Command> {
    match &drop.device {
        _ if ovs_reason(drop).is_some() => Vec::new(),
        _ if drop.reason.as_deref() == Some(SOCKET_FILTER) => SHOW_SOCKET_FILTER.map(Command::on_node).into(),
        // The packet belongs to the peer there. Only the device on the node shows the programs.
        Some(device) if dropped_in(drop) == Some(NETKIT) => vec![
            Command::on_node("bpftool net"),
            run_in(case, drop.netns, format!("ip -d link show {}", shell::link(&device.name))),
        ],
        Some(device) if drop.reason.as_deref() != Some(CGROUP_EGRESS) => {
            let device = shell::link(&device.name);
            let filters = ["ingress", "egress"].map(|way| format!("tc -s filter show dev {device} {way}"));
            let commands = std::iter::once("bpftool net".to_owned()).chain(filters);
            commands.map(|command| run_in(case, drop.netns, command)).collect()
        }
        _ if outbound(case, drop) => SHOW_CGROUP_PROGRAMS.map(Command::on_node).into(),
        _ => vec![Command::on_node("bpftool cgroup tree")],
    }
}

const UNIT: &str = "Find the program at the prober's cgroup, or one above it. systemd attaches one to a unit with IPAddressDeny=: let its IPAddressAllow= have the pods' addresses";
const SERVER_CGROUP: &str = "Find the program at the cgroup of the target's server, or one above it: its container, its pod or a slice. systemd attaches one to a slice or unit with IPAddressDeny=: let its IPAddressAllow= have the probers' addresses";
const fn at_cgroup(of_prober: bool) -> &'static str {
    if of_prober { UNIT } else { SERVER_CGROUP }
}

const SHOW_CGROUP_PROGRAMS: [&str; 2] =
    ["bpftool cgroup tree", "systemctl show kubelet -p IPAddressDeny -p IPAddressAllow"];

const OTHER_SOCKET_FILTERS: &str = "A filter of the socket, SELinux and a lack of memory drop so, too";
/// Show the cgroup programs and the filters of sockets. Without any: a lack of memory (the counter grows), and SELinux.
const SHOW_SOCKET_FILTER: [&str; 4] =
    ["bpftool cgroup tree", "ss -tlnpb", "nstat -az TcpExtPFMemallocDrop", "ausearch -m avc -ts recent"];

/// A prober connects to a pod of its own node. No NetworkPolicy applies to that traffic
/// (kubernetes.io/docs/concepts/services-networking/network-policies), and Cilium allows it by `allow-localhost:
/// always`. So a policy of another kind drops it, or a dataplane that does not know the pod (yet, or any more).
fn is_own_probe(case: &Case<'_>) -> bool {
    let by_node = case.attempt.prober && case.attempt.netns == case.node.netns();
    by_node && case.node.has_pod(case.attempt.flow.dst.ip())
}

const PROGRAM: &str = "Find what attached that program, and why it drops the packet";
const FILTER: &str = "Find the filter there that counts more packets with each attempt, and what made it: its action drops (gact, police), or redirects to a device that is down (mirred)";
const OTHER_FILTER: &str = "; no BPF program was found there, so most likely a filter of another kind did it";
const NO_NETWORK_POLICY: &str =
    "; it is an error, or a policy of another kind (a NetworkPolicy lets a node reach its own pods)";
const MONITOR: &str = "Find the dataplane's own reason for the drop; with Cilium, run the first command in its pod on this node (metric cilium_drop_count_total by reason)";

/// "a tc program or filter (ingress) on eth0 in network namespace 4026532000 drops the SYN 1.2.3.4:5 -> 6.7.8.9:80".
pub(super) fn describe_drop(case: &Case<'_>, drop: &PacketDrop, program: &str) -> String {
    let device = drop.device.as_ref().map(|device| format!(" on {}", device.name)).unwrap_or_default();
    let place = in_namespace(case, drop.netns);
    format!("{program}{device}{place} drops the {} {}", drop.flags.name(), drop.flow)
}

/// A program at cgroup/connect may have refused connect(). Only the error is known, which others give, too.
fn by_connect(case: &Case<'_>) -> Option<Finding> {
    let failed = case.attempt.connect_failed().filter(|failed| failed.errno == libc::EPERM)?;
    let decided_at = case.attempt.ended.map_or(case.attempt.started, |(time, _)| time);
    let summary = format!(
        "connect() to {} was refused with EPERM: an IPsec policy, a program at cgroup/connect, a security module or seccomp does that",
        failed.dst
    );
    let fields = json!({ "errno": failed.errno });
    let evidence = evidence_of(Hook::SysConnect.name(), decided_at, "connect() failed: EPERM".into(), fields);
    let text = format!(
        "Find which of them does it: an IPsec policy that blocks (the first command), or a program at the prober's cgroup (the second one). If a program enforces network policies, {ALLOW} there"
    );
    let remediation = Remediation::from(text).run([
        run_in(case, case.attempt.netns, "ip xfrm policy".to_owned()),
        Command::on_node("bpftool cgroup tree"),
        list_policies(),
    ]);
    let found = Finding::failure(Cause::NetworkPolicyDrop, vec![evidence], summary, remediation);
    Some(found.with_confidence(Confidence::Possible))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn the_place_decides_where_a_program_drops_without_a_reason() {
        for (reason, place, program) in [
            (Some("NOT_SPECIFIED"), "veth_xdp_rcv_skb", "an XDP program"),
            (Some("NOT_SPECIFIED"), "do_xdp_generic", "an XDP program"),
            (None, "netif_receive_generic_xdp", "an XDP program"),
            (None, "veth_poll", "an XDP program"),
            (Some("NOT_SPECIFIED"), "netkit_xmit", "a netkit program"),
            (None, "__dev_queue_xmit", "a tc program or filter (egress)"),
        ] {
            let mut stream = Stream::new();
            stream.connect().drop_with(SYN, POD, |drop| {
                (drop.reason, drop.location) = (reason.map(str::to_owned), Some(place.into()));
            });
            let verdict = stream.gives_up().verdict();
            assert_eq!((verdict.cause.name(), verdict.confidence), ("network_policy_drop", Confidence::Likely));
            assert_has(&verdict.summary, &[program]);
        }
    }

    /// An IPsec policy that blocks gives the same error.
    #[test]
    fn an_error_of_connect_alone_makes_a_policy_possible() {
        let verdict = Stream::new().connect().connect_failed(libc::EPERM).settles().verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("network_policy_drop", Confidence::Possible));
        assert_starts(&verdict.remediation.commands[0].run, "ip xfrm policy");
    }

    /// A rule of each of these chains may have dropped the SYN.
    fn dropped_by(chains: &[&str]) -> Verdict {
        let rules = chains.iter().map(|chain| rule(chain, RuleVerdict::Drop)).collect();
        Stream::new().connect().filtered(SYN, POD).push(firewall(POD, rules)).settles().verdict()
    }

    #[test]
    fn a_chain_of_the_cni_is_a_policy_and_a_chain_named_like_one_is_not() {
        assert_eq!(dropped_by(&["cali-fw-cali1234"]).cause.name(), "network_policy_drop");
        assert_eq!(dropped_by(&["podpolicy"]).cause.name(), "firewall_drop");
        assert_eq!(dropped_by(&["cali-cidr-block"]).cause.name(), "firewall_drop", "protection from loops");
        let either = dropped_by(&["cali-fw-cali1234", "mine"]);
        assert_eq!(either.cause.name(), "firewall_drop");
        assert_has(&either.summary, &["cali-fw-cali1234", "mine"]);
    }

    #[test]
    fn the_policies_of_the_owners_own_kinds_are_listed_too() {
        let listed = |chain| dropped_by(&[chain]).remediation;
        assert_has(&listed("cali-tw-cali1234"), &["kubectl get networkpolicy -A; ", "globalnetworkpolicies.crd."]);
        assert_has(&listed("CILIUM_INPUT"), &["kubectl get ciliumnetworkpolicies,"]);
        assert_lacks(&listed("KUBE-POD-FW-ABCDEF"), &[".crd."]);
    }

    /// kubernetes#89898, calico#10470: Calico's chains drop the SYN-ACK of the node's own probe.
    fn answer(when: When, tracked: Tracked, begin: fn(&mut Stream)) -> Verdict {
        let mut stream = Stream::new();
        begin(stream.links(true, &["10.88.0.1"]).http_readiness());
        let deny = FirewallRule { when, exact: !when.rpf, ..rule("cali-fw-cali1234", RuleVerdict::Drop) };
        stream.connect().drop_with(SYN_ACK, NODE, |drop| {
            (drop.reason, drop.location) = (Some("NETFILTER_DROP".into()), Some("nft_do_chain".into()));
            (drop.tracked, drop.device) = (Some(tracked), Some(device(7, "cali1234")));
        });
        stream.push(firewall(NODE, vec![deny])).gives_up().verdict()
    }

    #[test]
    fn a_policy_chain_that_drops_an_answer_to_the_nodes_own_probe_is_likely() {
        let own = answer(When::default(), Tracked::No, |_| {});
        assert_eq!((own.cause.name(), own.confidence), ("network_policy_drop", Confidence::Likely));
        assert_starts(&own.summary, "a rule of calico on the node");
        assert_has(&own.summary, &["no NetworkPolicy stops"]);
        assert_starts(&own.remediation.commands[0].run, "nft -a list chain");
        assert_lacks(&own.remediation, &["kubectl get networkpolicy"]);
        let untracked = answer(When::default(), Tracked::Untracked, |_| {});
        assert_has(&untracked.summary, &["(notrack)"]);
        assert_has(&untracked.remediation, &[": nft list ruleset | grep -w notrack; "]);
        let host = answer(When::default(), Tracked::No, |stream| _ = stream.on_host_network());
        assert_eq!(host.confidence, Confidence::Proven, "a pod of the host network");
    }

    #[test]
    fn a_reverse_path_check_is_no_policy() {
        let check = answer(When { rpf: true, ..When::default() }, Tracked::No, |_| {});
        assert_eq!(check.cause.name(), "firewall_drop");
        assert_starts(&check.summary, "the reverse-path check of calico on the node");
        let fix = "Fix the route to 10.88.0.2: it has to lead over cali1234.";
        assert_starts(&check.remediation, fix);
        assert_lacks(&check.remediation, &["networkpolicy"]);
    }

    /// Calico's rules match marks. Before 6.7, and with the legacy ip_tables, other drops free packets in the same
    /// function.
    #[test]
    fn a_policy_chain_that_may_not_have_dropped_it_is_likely() {
        let confidence = |place: &str| {
            let deny = FirewallRule { exact: false, ..rule("cali-fw-cali1234", RuleVerdict::Drop) };
            let mut stream = Stream::new();
            stream.connect().drop_in(SYN, "NETFILTER_DROP", POD, place);
            let verdict = stream.push(firewall(POD, vec![deny])).gives_up().verdict();
            assert_eq!(verdict.cause.name(), "network_policy_drop");
            verdict.confidence
        };
        assert_eq!(confidence("nft_do_chain"), Confidence::Proven);
        assert_eq!(confidence("nf_hook_slow"), Confidence::Likely);
    }

    #[test]
    fn a_programs_drop_is_reported_by_its_reason() {
        let verdict = Stream::new().connect().drop(SYN, "TC_INGRESS", POD).verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("network_policy_drop", Confidence::Likely));
        assert_has(&verdict.remediation, &["cilium_drop_count_total by reason", "cilium-dbg monitor --type drop"]);
    }

    /// The server sends the SYN-ACK, the prober the SYN.
    #[test]
    fn a_cgroup_program_is_at_the_senders_cgroup() {
        let fix = |flags, netns| {
            let dropped = Stream::new().connect().drop(flags, "BPF_CGROUP_EGRESS", netns).verdict();
            assert_eq!(dropped.cause.name(), "network_policy_drop");
            dropped.remediation
        };
        let (request, answer) = (fix(SYN, NODE), fix(SYN_ACK, POD));
        assert_has(&request, &["at the prober's cgroup", "systemctl show kubelet"]);
        assert_has(&answer, &["at the cgroup of the target's server", "bpftool cgroup tree"]);
        assert_lacks(&answer, &["prober's cgroup", "kubelet"]);
    }

    /// The node has an `eth0`, too.
    #[test]
    fn the_commands_for_a_program_in_a_pod_run_there() {
        let fix = |netns| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).connect().drop_on(SYN, "TC_INGRESS", netns, Some(device(2, "eth0")));
            stream.verdict().remediation
        };
        let (pod, node) = (fix(POD), fix(NODE));
        assert_has(
            &pod,
            &[&format!(
                "nsenter --net=$(find -L /run/netns/* /proc/*/ns/net -inum {} -print -quit) bpftool net; ",
                POD.0
            )],
        );
        assert_ends(&pod, "tc -s filter show dev eth0 egress");
        assert_ends(&node, "; bpftool net; tc -s filter show dev eth0 ingress; tc -s filter show dev eth0 egress");
    }

    /// A host-network pod's probe: a node short of memory, and SELinux, drop with this reason, too.
    #[test]
    fn a_socket_filter_drop_is_likely_at_most() {
        let mut stream = Stream::to("10.88.0.1:10257").links(true, &["10.88.0.1"]).connect().clone();
        let verdict = stream.drop(SYN, "SOCKET_FILTER", NODE).verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("network_policy_drop", Confidence::Likely));
        assert_has(&verdict.summary, &["a security module or a lack of memory on the node"]);
        assert_has(&verdict.remediation, &["nstat -az TcpExtPFMemallocDrop"]);
        assert_starts(&verdict.remediation, "Find the program at the cgroup of the target's server");
        assert_lacks(&verdict.remediation, &["cilium", "networkpolicy"]);
    }

    /// No NetworkPolicy stops this traffic. The program may have no entry for the pod.
    #[test]
    fn a_nodes_probe_of_its_own_pod_may_be_dropped_by_mistake() {
        let verdict = Stream::new().http_readiness().connect().drop(SYN, "TC_EGRESS", NODE).verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("network_policy_drop", Confidence::Likely));
        assert_has(&verdict.summary, &["it is an error, or a policy of another kind"]);
        assert_starts(&verdict.remediation, "Find the dataplane's own reason");
        assert_lacks(&verdict.remediation, &["kubectl get networkpolicy"]);
        let other = Stream::new().http_readiness().connect().by_other_process().drop(SYN, "TC_EGRESS", NODE).clone();
        assert_lacks(&other.verdict().summary, &["it is an error"]);
        // A prober that runs in another pod: a NetworkPolicy does apply.
        let mut pod = Stream::new().http_readiness().connect().clone();
        pod.last_connect().netns = POD;
        pod.drop(SYN, "TC_EGRESS", NODE).settles();
        assert_lacks(&pod.verdict().summary, &["it is an error"]);
    }

    /// Antrea, OVN-Kubernetes and kube-ovn make flows of policies, and of everything else.
    #[test]
    fn a_drop_by_flows_of_open_vswitch_is_likely_a_policy() {
        let reported =
            |reason: &str| Stream::new().http_readiness().connect().drop(SYN, reason, NODE).gives_up().verdict();
        for reason in ["OPENVSWITCH:1", "OPENVSWITCH:3"] {
            let verdict = reported(reason);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("network_policy_drop", Confidence::Likely));
            assert_starts(&verdict.summary, "Open vSwitch, by its flows,");
            assert_has(&verdict.remediation, &["ovs-appctl dpctl/dump-flows"]);
        }
        let limit = reported("OPENVSWITCH:5");
        assert_eq!(limit.cause.name(), "unexplained");
        assert_has(&limit.summary, &["an error or a limit of Open vSwitch"]);
    }

    #[test]
    fn a_program_that_drops_and_answers_with_a_rst_is_the_cause() {
        let mut stream = Stream::new();
        stream.connect().drop(SYN, "TC_INGRESS", POD).reset_received(TcpState::SynSent, 0);
        stream.state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0)).settles();
        assert_eq!(stream.causes(), ["network_policy_drop"]);
    }

    #[test]
    fn a_dropped_refusal_is_no_dropped_handshake() {
        let mut stream = Stream::new();
        stream.connect().reset_sent(SYN, true, None).drop(TcpFlags(0x14), "TC_INGRESS", NODE).gives_up();
        assert!(!stream.causes().contains(&"network_policy_drop"), "{:?}", stream.causes());
    }
}
