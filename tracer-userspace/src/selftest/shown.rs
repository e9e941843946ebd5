//! What `tracer selftest` plays: for each label the first of its scenarios that this machine can play, and a healthy one.

use crate::record::Label;

use super::scenario::{Need, Scenario, all, gaps};

/// A row: a label (none: healthy probes, which get none), and how it is shown.
#[derive(Clone)]
pub(super) struct Item {
    /// The label.
    pub(super) label: Option<Label>,
    /// The scenario that shows it, or why none can.
    pub(super) how: Result<Scenario, String>,
}

/// The rows of these labels; of all, and of healthy probes, if there are none.
#[must_use]
pub(super) fn items(labels: &[Label]) -> Vec<Item> {
    let scenarios = all();
    let wanted: Vec<Option<Label>> = match labels {
        [] => std::iter::once(None).chain(Label::ALL.iter().copied().map(Some)).collect(),
        labels => Label::ALL.iter().filter(|label| labels.contains(label)).copied().map(Some).collect(),
    };
    wanted.into_iter().map(|label| Item { label, how: choose(label, &scenarios, lacking) }).collect()
}

/// The first that lacks nothing; or what each lacks.
fn choose(
    label: Option<Label>,
    scenarios: &[Scenario],
    lacking: impl Fn(&Scenario) -> Option<String>,
) -> Result<Scenario, String> {
    let mut reasons: Vec<String> = Vec::new();
    for scenario in scenarios.iter().filter(|scenario| shows(scenario, label)) {
        match lacking(scenario) {
            None => return Ok(*scenario),
            Some(reason) if reasons.contains(&reason) => {}
            Some(reason) => reasons.push(reason),
        }
    }
    if reasons.is_empty() {
        Err(label.map_or("no scenario", gaps::why_none).to_owned())
    } else {
        Err(reasons.join("; "))
    }
}

/// Why it cannot be played here. A setting of the whole machine is never changed, whatever kind of machine it is.
fn lacking(scenario: &Scenario) -> Option<String> {
    if scenario.needs.contains(&Need::OwnMachine) {
        return Some(
            "changes a setting of the whole machine (`cargo xtask test` plays it in a virtual one)".to_owned(),
        );
    }
    scenario.needs.iter().find_map(|need| need.lacking())
}

/// As its own label, or beside it.
fn shows(scenario: &Scenario, label: Option<Label>) -> bool {
    scenario.label == label || (label.is_some() && scenario.also == label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_has_one_row_and_healthy_probes_the_first() {
        // What this machine lacks is another matter: whether there is a scenario at all.
        let scenarios = all();
        let none: Vec<_> = Label::ALL.iter().filter(|l| !scenarios.iter().any(|s| shows(s, Some(**l)))).collect();
        assert_eq!(none, [&Label::ExecTimeout, &Label::ExecFailed, &Label::CniNotReady]);
        for label in none {
            assert!(gaps::why_none(*label).starts_with("needs a real kubelet"), "{label}");
        }
        assert!(scenarios.iter().any(|s| shows(s, None)));
    }

    #[test]
    fn what_stands_beside_another_label_is_shown_by_it() {
        let of = |label| all().into_iter().find(|s| shows(s, Some(label))).map(|s| s.name);
        assert_eq!(of(Label::CpuThrottled), Some("slow_response_throttled"));
        assert_eq!(of(Label::SlowResponse), Some("slow_response"));
    }

    #[test]
    fn the_first_that_can_be_played_is_chosen_or_each_reason_told_once() {
        let drops = Some(Label::FirewallDrop);
        let without = |reason: fn(&Scenario) -> Option<&'static str>| {
            choose(drops, &all(), |s| reason(s).map(str::to_owned)).map(|s| s.name)
        };
        assert_eq!(without(|_| None), Ok("firewall_drop_pod_nft"));
        let legacy = |s: &Scenario| (!s.name.ends_with("legacy")).then_some("no nft");
        assert_eq!(without(legacy), Ok("firewall_drop_iptables_legacy"));
        let none = |s: &Scenario| Some(if s.name.contains("iptables") { "no iptables" } else { "no nft" });
        assert_eq!(without(none), Err("no nft; no iptables".to_owned()));
    }

    #[test]
    fn what_changes_the_whole_machine_is_never_played() {
        let full = all().into_iter().find(|s| s.label == Some(Label::ConntrackTableFull));
        let why = full.and_then(|scenario| lacking(&scenario));
        assert!(why.is_some_and(|why| why.contains("`cargo xtask test`")));
    }

    #[test]
    fn without_any_the_reason_is_given() {
        assert_eq!(
            choose(Some(Label::ExecFailed), &[], |_| None).err().as_deref(),
            Some(gaps::why_none(Label::ExecFailed))
        );
    }
}
