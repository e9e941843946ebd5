//! Rules and routes that a process removed in bulk, and the attempts that fail without them.

use std::net::IpAddr;

use serde_json::json;

use crate::case::{Case, drops, inspected, is_sent_elsewhere};
use crate::evidence::evidence_of;
use crate::finding::Finding;
use crate::services::restart_proxy_first;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::correlate::node_ports::LostNodePorts;
use tracer_attempts::enrich::netns_ref;
use tracer_model::event::{FlushedRules, ProxyMode, RemovedRoute, RulesFlushed, process_name};
use tracer_model::plural::counted;
use tracer_model::record::{Cause, Culprit};

const SECOND_NS: u64 = 1_000_000_000;
/// kube-proxy checks only whether a chain of `mangle` exists (`Monitor`, pkg/util/iptables), and nothing in nftables
/// mode. Otherwise it writes all rules again once an hour (`FullSyncPeriod`).
const RECENT_NS: u64 = 3600 * SECOND_NS;

/// If the attempt found no route or a wrong one: names the process that removed a rule or route for it in bulk.
pub fn add(case: &Case<'_>, found: &mut Finding) {
    if let Some(flush) = removed_service_rules(case, found.cause) {
        found.remediation = restart_proxy_first(case, std::mem::take(&mut found.remediation));
        return note(case, found, flush, "nf_tables", RULES_GONE);
    }
    let Some(flush) = removed_route(case, found.cause) else { return };
    if matches!(flush.rules, FlushedRules::Rules(_)) {
        found.change_fix(|fix| fix.reword(|text| format!("{RESTORE_RULES}. Else: {text}")));
    }
    note(case, found, flush, "rtnetlink", "one for this address among them");
    found.culprit = culprit(flush, case.node);
}

const RESTORE_RULES: &str =
    "Restore the ip rules that were removed: restart what made them, such as the CNI's agent on this node";

const RULES_GONE: &str = "what led to the Service may be gone with them";

/// The attempt found no rule of its NodePort: names the process that removed the rules since they were read.
pub fn add_lost_node_port(case: &Case<'_>, found: &mut Finding, lost: &LostNodePorts) {
    let tables: &[&str] = match lost.table.mode {
        ProxyMode::Nftables => &["kube-proxy"],
        ProxyMode::Iptables => &["nat"],
        ProxyMode::Ipvs => return,
    };
    // The node's own address is reached without these rules.
    let flush = removals_of(case, tables, None).find(|flush| flush.since_boot_ns >= lost.read);
    if let Some(flush) = flush {
        note(case, found, flush, "nf_tables", RULES_GONE);
    }
}

fn note(case: &Case<'_>, found: &mut Finding, flush: &RulesFlushed, source: &str, therefore: &str) {
    let ago = case.attempt.started.saturating_sub(flush.since_boot_ns) / SECOND_NS;
    let sentence = sentence(flush);
    found.summary += &format!("; {sentence} {ago} s before: {therefore}");
    let fields = json!({ "count": flush.count, "pid": flush.by.as_ref().map(|by| by.pid), "netns": flush.netns });
    found.evidence.insert(0, evidence_of(source, flush.since_boot_ns, sentence, fields));
    if let Some(process) = flush.by.as_ref().map(|by| by.exe.as_deref().unwrap_or(&by.comm)) {
        found.remediation.text += &format!(". Then keep {process} from removing what others set up");
    }
}

/// The recent removal of the proxy's rules. Only these rules lead to the address of a Service; they are in a table of
/// the proxy or in `nat`. The proxy restores them when it notices, but no hook shows whether it did.
fn removed_service_rules<'a>(case: &Case<'a>, cause: Cause) -> Option<&'a RulesFlushed> {
    let dst = case.attempt.flow.dst.ip();
    let has_no_way = matches!(cause, Cause::RouteUnreachable | Cause::NeighbourFailure | Cause::Unexplained);
    // A rule that translates the address is still there.
    if drops(case).any(|(_, drop)| is_sent_elsewhere(case, drop)) {
        return None;
    }
    if !has_no_way || !case.node.services.iter().any(|service| service.cluster_ips.contains(&dst)) {
        return None;
    }
    removals_of(case, &["nat", "kube-proxy"], Some(dst)).next()
}

/// The recent removals of rules in these tables of the target's address family. With `reached`, only those after which
/// that address was not reached.
fn removals_of<'a>(
    case: &Case<'a>,
    tables: &'static [&'static str],
    reached: Option<IpAddr>,
) -> impl Iterator<Item = &'a RulesFlushed> {
    let (attempt, node) = (case.attempt, case.node);
    let own = if attempt.flow.dst.is_ipv4() { "ip" } else { "ip6" };
    let is_of_proxy = move |family: &str, table: &str| [own, "inet"].contains(&family) && tables.contains(&table);
    let is_recent = |flush: &&RulesFlushed| attempt.started.saturating_sub(flush.since_boot_ns) < RECENT_NS;
    // A pod's packets are translated in the namespace of its node.
    let places = [attempt.netns, node.netns()].into_iter().flatten();
    let recent = places
        .flat_map(move |netns| {
            node.flushes.before(netns, attempt.started, reached.map(|target| (target, attempt.until())))
        })
        .filter(is_recent);
    recent.filter(
        move |flush| matches!(&flush.rules, FlushedRules::Nftables { family, table, .. } if is_of_proxy(family, table)),
    )
}

/// The bulk removal that took a rule or route for this attempt.
fn removed_route<'a>(case: &Case<'a>, cause: Cause) -> Option<&'a RulesFlushed> {
    let (attempt, flow) = (case.attempt, case.attempt.flow);
    let applied = |it: &&RemovedRoute| it.applied_to(flow.src.ip(), flow.dst.ip());
    let mut before = case.node.flushes.before(attempt.netns?, attempt.started, (flow.dst.ip(), attempt.until()));
    match cause {
        Cause::RouteUnreachable => {
            let (_, failed) = attempt.connect_failed_at()?;
            // Other errors come from a route that refuses. It was there before, and only a narrower one came first, such
            // as a pod's route in a block of addresses that Calico refuses.
            let refused = failed.errno != libc::ENETUNREACH;
            let fits = |it: &RemovedRoute| if refused { it.leads_only_to(flow.dst.ip()) } else { applied(&it) };
            let is_old = |flush, it: &RemovedRoute| it.leads_only_to(flow.dst.ip()) && !is_of_this_pod(case, flush);
            before.find(|flush| flush.rules.of_routing().iter().any(|it| fits(it) && !is_old(flush, it)))
        }
        Cause::AsymmetricRoute => {
            let stray = inspected(case)?.1.stray_route.as_ref()?;
            let Some(rule) = stray.rule.as_ref().filter(|_| stray.is_by_rule()) else { return removed_own_route(case) };
            // Only a rule that came before the one which now leads astray.
            let astray = rule.priority;
            let was_first = |it: &&RemovedRoute| it.priority.is_some_and(|priority| priority < astray);
            before.find(|flush| flush.rules.of_routing().iter().filter(was_first).any(|it| applied(&it)))
        }
        _ => None,
    }
}

/// The removal was not that of an earlier pod with the same address, which ended.
fn is_of_this_pod(case: &Case<'_>, flush: &RulesFlushed) -> bool {
    let from = case.attempt.netns;
    let target = from.and_then(|from| case.node.netns_of_addr(from, case.attempt.flow.dst.ip()));
    let made = target.and_then(|netns| case.node.namespaces.made(netns));
    made.is_none_or(|made| made < flush.since_boot_ns)
}

/// The bulk removal that took the route to the target alone. A wider one applies since, such as the default route.
pub fn removed_own_route<'a>(case: &Case<'a>) -> Option<&'a RulesFlushed> {
    let (attempt, dst) = (case.attempt, case.attempt.flow.dst.ip());
    let mut before = case.node.flushes.before(attempt.netns?, attempt.started, (dst, attempt.until()));
    before.find(|flush| {
        let FlushedRules::Routes(routes) = &flush.rules else { return false };
        is_of_this_pod(case, flush) && routes.iter().any(|it| it.leads_only_to(dst))
    })
}

/// `systemd-networkd (pid 412) removed 14 ip rules`
pub fn sentence(flush: &RulesFlushed) -> String {
    let process = match &flush.by {
        Some(by) => process_name(&by.comm, by.pid),
        None => "a process that was not seen".to_owned(),
    };
    let version = if flush.rules.of_routing().iter().any(|it| it.v6) { "IPv6 " } else { "" };
    let (what, of) = match &flush.rules {
        FlushedRules::Rules(_) => ("ip rule", String::new()),
        FlushedRules::Routes(_) => ("route", String::new()),
        FlushedRules::Nftables { family, table, replaced: true } => {
            ("rule", format!(" and the whole nftables table {family} {table}"))
        }
        FlushedRules::Nftables { family, table, .. } => ("rule", format!(" of the nftables table {family} {table}")),
    };
    let least = if flush.incomplete { "at least " } else { "" };
    format!("{process} removed {least}{}{of}", counted(flush.count as u64, &format!("{version}{what}")))
}

/// The process that removed them.
pub fn culprit(flush: &RulesFlushed, node: &Node) -> Option<Culprit> {
    let by = flush.by.clone()?;
    Some(Culprit {
        pid: by.pid,
        comm: by.comm,
        exe: by.exe,
        ancestors: by.ancestors,
        op: "rules_flushed".to_owned(),
        netns_path: None,
        netns: Some(netns_ref(flush.netns, node)),
        time_boot_ns: Some(flush.since_boot_ns),
    })
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn rules(to: &str) -> FlushedRules {
        FlushedRules::Rules(vec![Stream::removed_to(to, 24); 3])
    }

    fn verdict(stream: &Stream) -> VerdictBody {
        stream.verdicts().remove(0)
    }

    fn without_route(flushed: FlushedRules, errno: i32) -> VerdictBody {
        let stream = Stream::new().flushed(flushed).wait_ms(12_000).connect_failed(errno).clone();
        verdict(&stream)
    }

    #[test]
    fn the_process_that_removed_the_route_is_named() {
        let found = without_route(rules("10.88.0.0"), libc::ENETUNREACH);
        let words = "; systemd-network (pid 412) removed 3 ip rules 12 s before: one for this address among them";
        let pid = found.culprit.map(|it| it.pid);
        let found = found.verdict;
        assert_ends(&found.summary, words);
        assert_eq!((pid, found.evidence[0].hook.as_str()), (Some(412), "rtnetlink"));
        assert_ends(&found.remediation.text, "keep systemd-network from removing what others set up");
    }

    #[test]
    fn a_process_that_removed_another_route_is_not_named() {
        let of_others = without_route(rules("10.99.0.0"), libc::ENETUNREACH);
        assert!(of_others.culprit.is_none() && !of_others.verdict.summary.contains("removed"));
        let refusing = without_route(rules("10.88.0.0"), libc::EHOSTUNREACH);
        assert!(refusing.culprit.is_none(), "a route that refuses is there");
        let later = Stream::new().connect_failed(libc::ENETUNREACH).wait_ms(10).flushed(rules("10.88.0.0")).clone();
        assert!(verdict(&later).culprit.is_none());
    }

    /// The rules were added again, and probes succeeded. Later another process removed the one for this address.
    #[test]
    fn a_removal_that_was_repaired_names_nobody() {
        let culprit = |reached: &str| {
            let mut stream = Stream::to(reached).flushed(rules("10.88.0.0")).wait_ms(2_000).clone();
            stream.connect().established().answers(200).wait_ms(1_000).again_to(8, "10.88.0.2:8080");
            let stream = stream.connect_failed(libc::ENETUNREACH).clone();
            verdict(&stream).culprit.map(|it| it.pid)
        };
        assert_eq!((culprit("10.88.0.2:8080"), culprit("10.88.0.3:8080")), (None, Some(412)));
        let mut before = Stream::new().connect().established().answers(200).wait_ms(2_000).clone();
        before.flushed(rules("10.88.0.0")).wait_ms(2_000).again(8).connect_failed(libc::ENETUNREACH);
        assert_eq!(verdict(&before).culprit.map(|it| it.pid), Some(412));
    }

    #[test]
    fn the_removal_of_the_proxys_table_explains_a_lost_service() {
        let from = |netns, table: &str, dst: &str, wait_ms: u64| {
            let mut stream = Stream::to(dst);
            stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.33")]);
            stream.flushed(FlushedRules::Nftables { family: "ip".into(), table: table.into(), replaced: true });
            stream.wait_ms(wait_ms).connect().last_connect().netns = netns;
            stream.gives_up();
            let found = verdict(&stream);
            let removed = found.verdict.summary.contains("removed 40 rules");
            let fix = "If the rules for 10.96.0.33 are still missing, restart kube-proxy on this node";
            assert_eq!(found.verdict.remediation.text.starts_with(fix), removed);
            (removed, found.culprit.is_some())
        };
        let summary = |table: &str, dst: &str, wait_ms| from(NODE, table, dst, wait_ms);
        assert_eq!(from(POD, "kube-proxy", "10.96.0.33:80", 5_000), (true, false), "the node translates for its pods");
        assert_eq!(summary("nat", "10.96.0.33:80", 5_000), (true, false));
        assert_eq!(summary("nat", "10.88.0.2:80", 5_000), (false, false), "no Service");
        assert_eq!(summary("filter", "10.96.0.33:80", 5_000), (false, false));
        assert_eq!(summary("nat", "10.96.0.33:80", 70_000), (true, false), "kube-proxy does not look at that table");
        assert_eq!(summary("nat", "10.96.0.33:80", 3_601_000), (false, false), "the proxy has put them back");
    }

    #[test]
    fn in_ipvs_mode_no_rule_has_the_address_of_a_service() {
        let mut stream = Stream::to("10.96.0.33:80");
        stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.33")]).node_port(ProxyMode::Ipvs, 40_001, &[]);
        stream.flushed(FlushedRules::Nftables { family: "ip".into(), table: "nat".into(), replaced: true });
        let fix = stream.wait_ms(5_000).connect().gives_up().verdict().remediation;
        assert_has(&fix, &["ipvsadm -Ln"]);
    }

    /// A container of another engine, or a pod of a node in a container, has rules of its own on its way.
    #[test]
    fn only_a_connect_through_the_flushed_table_shows_that_the_service_is_back() {
        let names = |reached_from| {
            let mut stream = Stream::to("10.96.0.33:80");
            stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.33")]);
            stream.http_readiness().pod_in(POD).connect().established();
            stream.flushed(FlushedRules::Nftables { family: "ip".into(), table: "nat".into(), replaced: true });
            stream.wait_ms(2_000).again(8).connect().last_connect().netns = reached_from;
            stream.established().answers(200).wait_ms(2_000).again(9).connect().gives_up();
            verdict(&stream).verdict.summary.contains("removed 40 rules")
        };
        assert_eq!([NODE, POD, Netns(9)].map(names), [false, false, true]);
    }

    /// The node's own address is reached all the time. Its stack refuses what the rules would have led to a Service.
    #[test]
    fn a_node_port_of_a_removed_table_keeps_its_service() {
        let empty = |stream: &mut Stream| {
            _ = stream.push(ObservationKind::NodePorts(NodePorts::new(NODE, ProxyMode::Nftables, Vec::new())))
        };
        let refused = |table: &str, later: &dyn Fn(&mut Stream)| {
            let mut stream = Stream::to("10.88.0.1:30080");
            stream.links(true, &["10.88.0.1"]).node_port(ProxyMode::Nftables, 30080, &[]);
            stream.flushed(FlushedRules::Nftables { family: "ip".into(), table: table.into(), replaced: true });
            empty(stream.wait_ms(1));
            later(&mut stream);
            stream.again_to(7, "10.88.0.1:10250").connect().established().answers(200).wait_ms(2_000);
            stream.again_to(8, "10.88.0.1:30080").connect().reset_sent(SYN, true, None).last_reset_sent().netns =
                Some(NODE);
            verdict(&stream).verdict
        };
        let found = refused("kube-proxy", &|_| ());
        let words = "; 30080 was a NodePort of Service kube-system/dashboard, and the rules on this node have no NodePort any more; \
                     systemd-network (pid 412) removed 40 rules and the whole nftables table ip kube-proxy 2 s before: \
                     what led to the Service may be gone with them";
        assert_eq!(found.cause, Cause::ConnectionRefused);
        assert_ends(&found.summary, words);
        assert_has(&found.remediation, &["restart kube-proxy on this node"]);
        let restored = |port| move |stream: &mut Stream| _ = stream.node_port(ProxyMode::Nftables, port, &[]);
        let repaired = |stream: &mut Stream| {
            restored(30080)(stream);
            empty(stream.wait_ms(1));
        };
        for other in [refused("filter", &|_| ()), refused("nat", &|_| ()), refused("kube-proxy", &repaired)] {
            assert_ends(&other.summary, "the rules on this node have no NodePort any more");
        }
        for port in [30080, 30081] {
            assert_lacks(&refused("kube-proxy", &restored(port)).summary, &["any more", "removed"]);
        }
        let stopped = |stream: &mut Stream| _ = stream.listens(NODE, 30080, true).listens(NODE, 30080, false);
        assert_lacks(&refused("kube-proxy", &stopped).summary, &["NodePort", "removed"]);
    }

    fn astray(priority: u32) -> VerdictBody {
        let mut stream = Stream::new();
        let rule = Some(RoutingRule { priority, from: Some("10.88.0.1".into()), to: None, ports: None });
        let stray = StrayRoute { rule, ..stray("eth1", "veth7", 101) };
        stream.flushed(rules("10.88.0.0")).connect().wait_ms(200).inspection(|flush| flush.stray_route = Some(stray));
        stream.gives_up();
        verdict(&stream)
    }

    /// A pod's route in the main table: the default route, or a block of addresses that Calico refuses, is left.
    #[test]
    fn the_process_that_removed_the_pods_own_route_is_named() {
        let own = |len| {
            FlushedRules::Routes(vec![RemovedRoute { priority: None, ..Stream::removed_to("10.88.0.2", len) }; 3])
        };
        let mut stream = Stream::new();
        let stray = stray("eth0", "veth7", 254);
        stream.flushed(own(32)).connect().wait_ms(200).inspection(|it| it.stray_route = Some(stray)).gives_up();
        let found = verdict(&stream);
        assert_eq!((found.verdict.cause.name(), found.culprit.map(|it| it.pid)), ("asymmetric_route", Some(412)));
        assert_has(&found.verdict.summary, &["out of eth0, while the pod is behind veth7: its own route was removed"]);
        let refused = |len| without_route(own(len), libc::EINVAL).culprit.map(|it| it.pid);
        assert_eq!((refused(32), refused(24)), (Some(412), None));
    }

    /// The removed rule had priority 1000.
    #[test]
    fn only_a_removed_rule_before_the_stray_one_is_named() {
        assert_eq!((astray(1001).culprit.map(|it| it.pid), astray(999).culprit), (Some(412), None));
    }
}
