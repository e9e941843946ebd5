//! Connection tracking had no room for the SYN.

use serde_json::json;

use super::super::blame::Blame;
use super::super::evidence::{evidence, netfilter_hook, plain};
use super::super::stopped::dropped;
use super::{Case, Finding, Label, enter};
use crate::correlate::firewalls::Reading;
use crate::event::{Conntrack, PacketDrop};
use crate::record::{Confidence, Evidence};

/// What was turned away since a reading that is older than this may have been at another time.
const RECENT_NS: u64 = 5_000_000_000;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let stopped = dropped(case)?;
    let (time, drop) = stopped.drop.filter(|(_, drop)| is_where_tracking_begins(drop))?;
    let reading = case.node.firewalls.reading(drop.netns?)?;
    let table = reading.firewall.conntrack.filter(|_| reading.at >= time).filter(|table| is_full(*table))?;
    let rose = rose(reading, table, time);
    // A rule that fits, or one that was not read, is the nearer cause, unless the table itself counted.
    let no_rule = stopped.blame.as_ref().is_some_and(Blame::is_nobody);
    (rose || (no_rule && table.drop > 0)).then_some(())?;
    let summary = format!(
        "the connection table is full ({} of {} entries): netfilter{}; {} packets were turned away so far",
        table.count,
        table.max,
        stopped.did(case),
        table.drop
    );
    let remediation = format!(
        "{}sysctl -w net.netfilter.nf_conntrack_max={}, and see there what fills it: conntrack -L -o extended | head",
        enter(case, drop.netns),
        table.max.saturating_mul(2)
    );
    let confidence = if rose { Confidence::Proven } else { Confidence::Likely };
    let mut found = stopped.finding(case, Label::ConntrackTableFull, summary, remediation).with_confidence(confidence);
    found.evidence.retain(|seen| seen.hook != "netfilter");
    found.evidence.push(of_table(reading.at, table));
    Some(found)
}

/// A SYN, in the hooks where entries are made, freed by the function that runs them and not by a rule of nftables.
fn is_where_tracking_begins(drop: &PacketDrop) -> bool {
    drop.flags.is_syn()
        && drop.location.as_deref().map(plain) == Some("nf_hook_slow")
        && matches!(netfilter_hook(drop), None | Some("PREROUTING" | "OUTPUT"))
}

/// The number is read a moment after the drop: a few entries may have gone.
const fn is_full(table: Conntrack) -> bool {
    table.max > 0 && table.count.saturating_add(table.max / 20) >= table.max
}

fn rose(reading: &Reading, table: Conntrack, time: u64) -> bool {
    let recent = |at: u64| at <= time && time - at <= RECENT_NS;
    let before = reading.before.as_ref().filter(|before| recent(before.at) && time <= reading.at);
    before.and_then(|before| before.conntrack).is_some_and(|before| table.drop > before.drop)
}

fn of_table(time: u64, table: Conntrack) -> Evidence {
    let says = format!("nf_conntrack_count is {}, nf_conntrack_max {}", table.count, table.max);
    let fields = json!({ "count": table.count, "max": table.max, "drop": table.drop, "early_drop": table.early_drop });
    evidence("nf_conntrack", time, says, fields)
}

#[cfg(test)]
mod tests {
    use crate::event::{Conntrack, Fact, RuleVerdict};
    use crate::record::Confidence;
    use crate::testing::{NODE, SYN, Stream, firewall, rule};

    fn table(count: u64, drop: u64, rules: Vec<crate::event::FirewallRule>) -> Fact {
        let Fact::Firewall(mut firewall) = firewall(NODE, rules) else { unreachable!("a firewall") };
        firewall.conntrack = Some(Conntrack { count, max: 100, drop, ..Conntrack::default() });
        Fact::Firewall(firewall)
    }

    fn stream(facts: &[Fact]) -> Stream {
        let mut stream = Stream::new();
        stream.connect();
        let (last, first) = facts.split_last().expect("a fact");
        first.iter().for_each(|fact| _ = stream.push(fact.clone()));
        stream.drop(SYN, "NETFILTER_DROP", NODE);
        if let Some(Fact::Drop(drop)) = stream.observations.last_mut().map(|o| &mut o.fact) {
            drop.location = Some("nf_hook_slow".into());
            drop.stack = vec!["__ip_local_out".into()];
        }
        stream.push(last.clone()).wait_ms(5).push(Fact::Tick);
        stream
    }

    #[test]
    fn a_full_table_and_no_rule() {
        let said = |facts: &[Fact]| {
            let verdict = stream(facts).verdicts().remove(0).verdict;
            (verdict.label.name(), verdict.confidence)
        };
        assert_eq!(said(&[table(100, 7, Vec::new())]), ("conntrack_table_full", Confidence::Likely));
        let twice = [table(100, 7, Vec::new()), table(100, 8, Vec::new())];
        assert_eq!(said(&twice), ("conntrack_table_full", Confidence::Proven));
        assert_eq!(said(&[table(50, 7, Vec::new())]).0, "firewall_drop");
    }

    #[test]
    fn a_rule_that_fits_is_nearer() {
        let mut legacy = rule("OUTPUT", RuleVerdict::Drop);
        (legacy.backend, legacy.hooks) = (crate::event::Backend::IptablesLegacy, vec!["OUTPUT".into()]);
        assert_eq!(stream(&[table(100, 7, vec![legacy])]).labels(), ["firewall_drop"]);
    }

    /// The table is full enough, has turned packets away at some time, and a rule that was not read may have done it.
    #[test]
    fn rules_that_could_not_all_be_read_are_no_absence_of_one() {
        let mut unread = table(96, 3, Vec::new());
        if let Fact::Firewall(firewall) = &mut unread {
            firewall.problems.push("ip_tables: EPERM".into());
        }
        assert_eq!(stream(&[unread.clone()]).labels(), ["firewall_drop"]);
        assert_eq!(stream(&[table(96, 3, Vec::new())]).labels(), ["conntrack_table_full"]);
        let Fact::Firewall(mut rose) = unread.clone() else { unreachable!("a firewall") };
        rose.conntrack = rose.conntrack.map(|table| Conntrack { drop: 4, ..table });
        assert_eq!(stream(&[unread, Fact::Firewall(rose)]).labels(), ["conntrack_table_full"], "it counted");
    }
}
