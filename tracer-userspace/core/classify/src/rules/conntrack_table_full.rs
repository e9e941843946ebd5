//! The table of connection tracking had no room for the SYN.

use super::*;
use tracer_attempts::correlate::firewalls::Reading;
use tracer_case::blame::may_be_by_tracking;
use tracer_case::drop_reason::is_nameless;
use tracer_case::netfilter::dropped;
use tracer_model::event::{Conntrack, PacketDrop};
use tracer_model::plural::were;

/// If the reading before the drop is older than this, the table's counter may have risen at another time.
const RECENT_NS: u64 = 5_000_000_000;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let blocked = dropped(case)?;
    let (time, drop) = blocked.drop.filter(|(_, drop)| may_be_by_tracking(drop))?;
    let reading = case.node.firewalls.reading(drop.netns?)?;
    let table = reading.firewall.conntrack.filter(|_| reading.at >= time).filter(|table| table.is_full())?;
    let rose = has_counter_risen(reading, table, time);
    let blame = blocked.blame.as_ref();
    let by_rule = blame.is_some_and(|blame| blame.by_rule);
    let rules = blame.filter(|blame| !blame.rules.is_empty()).map(Blame::named);
    // A rule that certainly dropped it wins. Else the table's counter rose at the drop, or no rule can have dropped it.
    // Without a counter the table may have dropped it.
    let no_rule = blame.is_some_and(|blame| is_by_conntrack(blame, drop));
    (!by_rule && (rose || (no_rule && table.drop != Some(0)))).then_some(())?;
    let less_likely = rules.as_ref().map(|named| format!("; less likely it was {named}")).unwrap_or_default();
    let counted = table.drop.map(|drop| format!("; {} dropped so far", were(drop, "packet"))).unwrap_or_default();
    let summary = format!(
        "the connection table is full ({} of {} entries): netfilter{}{counted}{less_likely}",
        table.count,
        table.max,
        blocked.action(case),
    );
    let raise = format!("sysctl -w net.netfilter.nf_conntrack_max={}", table.max.saturating_mul(2));
    let remediation = Remediation::from("Make the connection table larger (a pod cannot), and find what fills it. kube-proxy sets its size at each start: raise conntrack.maxPerCore there")
        .run([Command::on_node(raise), run_in(case, drop.netns, WHAT_FILLS_IT)]);
    let is_sure = rose && rules.is_none() && !is_nameless(drop);
    let confidence = if is_sure { Confidence::Proven } else { Confidence::Likely };
    let mut found = blocked.finding(case, Cause::ConntrackTableFull, summary, remediation).with_confidence(confidence);
    found.evidence.push(of_table(reading.at, table));
    Some(found)
}

/// Counts the entries by source and destination. Their columns differ between protocols.
const WHAT_FILLS_IT: &str =
    r"conntrack -L | sed 's/^[^=]*=\([^ ]*\) dst=\([^ ]*\).*/\1 \2/' | sort | uniq -c | sort -rn | head";

/// All rules were read, and none can have dropped the SYN: none fits, or those that fit see packets only after
/// connection tracking, where the SYN did not arrive.
fn is_by_conntrack(blame: &Blame<'_>, drop: &PacketDrop) -> bool {
    let has_no_entry = drop.tracked.is_some();
    blame.complete && (blame.rules.is_empty() || (has_no_entry && blame.come_after_tracking()))
}

/// The table's drop counter rose between the readings before and after the drop.
fn has_counter_risen(reading: &Reading, table: Conntrack, time: u64) -> bool {
    let recent = |at: u64| at <= time && time - at <= RECENT_NS;
    let before = reading.before.as_ref().filter(|before| recent(before.at) && time <= reading.at);
    let then = before.and_then(|before| before.conntrack?.drop);
    table.drop.zip(then).is_some_and(|(now, then)| now > then)
}

fn of_table(time: u64, table: Conntrack) -> Evidence {
    let text = format!("nf_conntrack_count is {}, nf_conntrack_max {}", table.count, table.max);
    let fields = json!({ "count": table.count, "max": table.max, "drop": table.drop, "early_drop": table.early_drop });
    evidence_of("nf_conntrack", time, text, fields)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn table(count: u64, drop: u64, rules: Vec<FirewallRule>) -> ObservationKind {
        firewall_with(NODE, rules, |it| it.conntrack = Some(conntrack(count, drop)))
    }

    fn conntrack(count: u64, drop: u64) -> Conntrack {
        Conntrack { count, max: 100, drop: Some(drop), ..Conntrack::default() }
    }

    fn stream(observations: &[ObservationKind]) -> Stream {
        stream_of(Some(Tracked::No), observations)
    }

    fn stream_of(tracked: Option<Tracked>, observations: &[ObservationKind]) -> Stream {
        let mut stream = Stream::new().connect().clone();
        let (last, first) = observations.split_last().expect("an observation");
        first.iter().for_each(|kind| _ = stream.push(kind.clone()));
        stream.filtered(SYN, NODE);
        let drop = stream.last_drop();
        (drop.location, drop.tracked) = (Some("nf_hook_slow".into()), tracked);
        drop.stack = vec!["__ip_local_out".into()];
        stream.push(last.clone()).settles();
        stream
    }

    fn reported(tracked: Option<Tracked>, observations: &[ObservationKind]) -> (&'static str, Confidence) {
        stream_of(tracked, observations).decided()
    }

    #[test]
    fn a_full_table_without_a_fitting_rule_is_the_cause() {
        let reported = |observations: &[ObservationKind]| reported(Some(Tracked::No), observations);
        assert_eq!(reported(&[table(100, 7, Vec::new())]), ("conntrack_table_full", Confidence::Likely));
        let twice = [table(100, 7, Vec::new()), table(100, 8, Vec::new())];
        assert_eq!(reported(&twice), ("conntrack_table_full", Confidence::Proven));
        assert!(stream(&[table(50, 7, Vec::new())]).causes().is_empty(), "it had room, and no rule fits");
    }

    /// `CONFIG_NF_CONNTRACK_PROCFS` is off, and ctnetlink was refused: a rule may have dropped it as well.
    #[test]
    fn a_full_table_without_a_counter_is_likely() {
        let uncounted = |count, rules: Vec<FirewallRule>| {
            let table = Conntrack { count, max: 100, ..Conntrack::default() };
            firewall_with(NODE, rules, |it| it.conntrack = Some(table))
        };
        let twice = [uncounted(100, Vec::new()), uncounted(100, Vec::new())];
        assert_eq!(reported(Some(Tracked::No), &twice), ("conntrack_table_full", Confidence::Likely));
        assert_lacks(&stream(&twice).verdict().summary, &["dropped so far"]);
        let exact = || vec![FirewallRule { packets: Some(3), ..rule("OUTPUT", RuleVerdict::Drop) }];
        let (_, confidence) = reported(Some(Tracked::No), &[uncounted(100, exact())]);
        assert_eq!(confidence, Confidence::Likely, "the table may have dropped it");
        let with_room = reported(Some(Tracked::No), &[uncounted(50, exact())]);
        assert_eq!(with_room, ("firewall_drop", Confidence::Proven));
    }

    /// `kernel.kptr_restrict` is 2: neither the function nor the hook is known.
    #[test]
    fn hidden_functions_make_it_likely() {
        let decided = |observations: &[ObservationKind]| {
            let mut stream = stream(observations);
            for observation in &mut stream.observations {
                let ObservationKind::Drop(drop) = &mut observation.kind else { continue };
                (drop.location, drop.stack) = (None, vec!["?".into(); 3]);
            }
            stream.decided()
        };
        let full = |rules: Vec<FirewallRule>| [table(100, 7, rules.clone()), table(100, 8, rules)];
        assert_eq!(decided(&full(Vec::new())), ("conntrack_table_full", Confidence::Likely));
        assert_eq!(decided(&[table(50, 7, vec![marked(0)])]), ("firewall_drop", Confidence::Likely));
        let exact = vec![FirewallRule { packets: Some(3), ..rule("INPUT", RuleVerdict::Drop) }];
        assert_eq!(decided(&[table(50, 7, exact)]), ("firewall_drop", Confidence::Likely), "of another hook");
    }

    /// One limit holds for all namespaces. Only the initial namespace can write it.
    #[test]
    fn the_limit_is_raised_on_the_node() {
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.1"]).connect().drop_with(SYN, POD, |drop| {
            (drop.reason, drop.location) = (Some("NETFILTER_DROP".into()), Some("nf_hook_slow".into()));
            (drop.tracked, drop.stack) = (Some(Tracked::No), vec!["ip_rcv".into()]);
        });
        stream.push(firewall_with(POD, Vec::new(), |it| it.conntrack = Some(conntrack(100, 7)))).settles();
        let fix = stream.verdict().remediation;
        assert_has(&fix, &[": sysctl -w net.netfilter.nf_conntrack_max=200; ", " -print -quit) conntrack -L | sed "]);
    }

    /// The kubelet's rule for marked packets in KUBE-FIREWALL, to which INPUT and OUTPUT lead.
    fn marked(packets: u64) -> FirewallRule {
        FirewallRule {
            backend: Backend::IptablesLegacy,
            table: "filter".into(),
            base: None,
            priority: None,
            exact: false,
            packets: Some(packets),
            ..rule("KUBE-FIREWALL", RuleVerdict::Drop)
        }
    }

    #[test]
    fn a_full_table_wins_over_a_rule_that_may_have_dropped_it() {
        let observations = [table(100, 7, vec![marked(0)])];
        assert_eq!(reported(Some(Tracked::No), &observations), ("conntrack_table_full", Confidence::Likely));
        let summary = stream(&observations).verdict().summary;
        assert_has(&summary, &["; less likely it was rule 4 in chain KUBE-FIREWALL"]);
        assert_eq!(reported(Some(Tracked::Yes), &observations), ("firewall_drop", Confidence::Likely), "it had room");
        assert_eq!(reported(None, &observations), ("firewall_drop", Confidence::Likely));
        let raw = FirewallRule { table: "raw".into(), ..marked(0) };
        assert_eq!(reported(Some(Tracked::No), &[table(100, 7, vec![raw])]), ("firewall_drop", Confidence::Likely));
    }

    #[test]
    fn the_counter_that_rose_decides_between_table_and_rule() {
        let reported = |drop: [u64; 2], packets: [u64; 2]| {
            reported(Some(Tracked::No), &[0, 1].map(|at| table(100, drop[at], vec![marked(packets[at])])))
        };
        assert_eq!(reported([7, 7], [3, 4]), ("firewall_drop", Confidence::Proven));
        assert_eq!(
            reported([7, 8], [3, 3]),
            ("conntrack_table_full", Confidence::Likely),
            "the rule may have been loaded again"
        );
        assert_eq!(reported([7, 8], [3, 4]), ("conntrack_table_full", Confidence::Likely), "both rose");
        assert_eq!(reported([7, 8], [0, 0]), ("conntrack_table_full", Confidence::Proven));
    }

    /// `iptables -t raw -A OUTPUT -p tcp --dport 8080 -j DROP`.
    #[test]
    fn a_rule_before_connection_tracking_that_drops_all_packets_wins() {
        let raw = FirewallRule { priority: Some(-300), ..rule("OUTPUT", RuleVerdict::Drop) };
        let observations = |raw: FirewallRule| [table(100, 7, vec![raw.clone()]), table(100, 8, vec![raw])];
        assert_eq!(reported(Some(Tracked::No), &observations(raw.clone())), ("firewall_drop", Confidence::Proven));
        let filter = FirewallRule { priority: Some(0), ..raw };
        assert_eq!(reported(Some(Tracked::No), &observations(filter)), ("conntrack_table_full", Confidence::Likely));
    }

    /// The table is nearly full and has dropped packets before. A rule that was not read may have dropped this SYN.
    #[test]
    fn with_unread_rules_the_table_is_the_cause_only_if_its_counter_rose() {
        let unread = |drop| {
            firewall_with(NODE, Vec::new(), |it| {
                (it.conntrack, it.problems) = (Some(conntrack(96, drop)), vec!["ip_tables: EPERM".into()]);
            })
        };
        assert_eq!(stream(&[unread(3)]).decided(), ("firewall_drop", Confidence::Likely), "the table may have done it");
        assert_eq!(stream(&[table(96, 3, Vec::new())]).causes(), ["conntrack_table_full"]);
        assert_eq!(stream(&[unread(3), unread(4)]).causes(), ["conntrack_table_full"], "it counted");
    }
}
