//! What `tracer selftest` plays: for each label the first of its scenarios that this machine can play, and a healthy one.

use crate::classify::label::Label;

use super::scenario::{Scenario, all, gaps};

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
    wanted.into_iter().map(|label| Item { label, how: choose(label, &scenarios) }).collect()
}

fn choose(label: Option<Label>, scenarios: &[Scenario]) -> Result<Scenario, String> {
    let lacking = |scenario: &Scenario| scenario.needs.iter().find_map(|need| need.lacking());
    let mut why = None;
    for scenario in scenarios.iter().filter(|scenario| shows(scenario, label)) {
        match lacking(scenario) {
            None => return Ok(*scenario),
            Some(reason) => why = why.or(Some(reason)),
        }
    }
    Err(why.unwrap_or_else(|| label.map_or("no scenario", gaps::why_none).to_owned()))
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
        assert_eq!(none, [&Label::KubeletDelayed, &Label::ExecTimeout, &Label::ExecFailed, &Label::CniNotReady]);
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
    fn without_any_the_reason_is_given() {
        assert_eq!(choose(Some(Label::ExecFailed), &[]).err().as_deref(), Some(gaps::why_none(Label::ExecFailed)));
    }
}
