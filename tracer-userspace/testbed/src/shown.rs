//! What `tracer selftest` plays: for each cause the first of its scenarios that this machine can play, and a healthy one.

use tracer_model::record::Cause;

use super::scenario::{Need, Scenario, all, gaps};

/// A row: a cause (none: healthy probes, which get none), and how it is shown.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) cause: Option<Cause>,
    /// The scenario that shows it, or why none can.
    pub(super) how: Result<Scenario, String>,
}

/// The rows of these causes; of all, and of healthy probes, if there are none.
pub(super) fn items(causes: &[Cause]) -> Vec<Item> {
    let scenarios = all();
    let wanted: Vec<Option<Cause>> = match causes {
        [] => std::iter::once(None).chain(Cause::ALL.iter().copied().map(Some)).collect(),
        causes => Cause::ALL.iter().filter(|cause| causes.contains(cause)).copied().map(Some).collect(),
    };
    wanted.into_iter().map(|cause| Item { cause, how: choose(cause, &scenarios, lacking) }).collect()
}

/// The first that lacks nothing; or what each lacks.
fn choose(
    cause: Option<Cause>,
    scenarios: &[Scenario],
    lacking: impl Fn(&Scenario) -> Option<String>,
) -> Result<Scenario, String> {
    let mut reasons: Vec<String> = Vec::new();
    for scenario in scenarios.iter().filter(|scenario| shows(scenario, cause)) {
        match lacking(scenario) {
            None => return Ok(*scenario),
            Some(reason) if reasons.contains(&reason) => {}
            Some(reason) => reasons.push(reason),
        }
    }
    if reasons.is_empty() {
        Err(cause.map_or("no scenario", gaps::why_none).to_owned())
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

/// As its own cause, or beside it.
fn shows(scenario: &Scenario, cause: Option<Cause>) -> bool {
    scenario.cause == cause || (cause.is_some() && scenario.also == cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_one_row_and_healthy_probes_the_first() {
        // What this machine lacks is another matter: whether there is a scenario at all.
        let scenarios = all();
        let none: Vec<_> = Cause::ALL.iter().filter(|l| !scenarios.iter().any(|s| shows(s, Some(**l)))).collect();
        assert_eq!(
            none,
            [
                &Cause::ExecTimeout,
                &Cause::ExecNotRun,
                &Cause::ExecFailed,
                &Cause::KubeletClientError,
                &Cause::CniNotReady
            ]
        );
        for cause in none {
            assert!(gaps::why_none(*cause).starts_with("needs a real kubelet"), "{cause}");
        }
        assert!(scenarios.iter().any(|s| shows(s, None)));
    }

    #[test]
    fn what_stands_beside_another_cause_is_shown_by_it() {
        let of = |cause| all().into_iter().find(|s| shows(s, Some(cause))).map(|s| s.name);
        assert_eq!(of(Cause::CpuThrottled), Some("slow_response_throttled"));
        assert_eq!(of(Cause::SlowResponse), Some("slow_response"));
    }

    #[test]
    fn the_first_that_can_be_played_is_chosen_or_each_reason_reported_once() {
        let drops = Some(Cause::FirewallDrop);
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
        let full = all().into_iter().find(|s| s.cause == Some(Cause::ConntrackTableFull));
        let why = full.and_then(|scenario| lacking(&scenario));
        assert!(why.is_some_and(|why| why.contains("`cargo xtask test`")));
    }

    #[test]
    fn without_any_the_reason_is_given() {
        assert_eq!(
            choose(Some(Cause::ExecFailed), &[], |_| None).err().as_deref(),
            Some(gaps::why_none(Cause::ExecFailed))
        );
    }
}
