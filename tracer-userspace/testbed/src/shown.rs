//! Chooses the scenarios of `tracer selftest`: the first one of each cause that this machine can run, and a healthy
//! one.

use tracer_model::record::Cause;

use super::scenario::{Need, Scenario, all};

/// Why a cause has no scenario.
const NEEDS_KUBELET: &str = "needs a real kubelet, because its log decides (`cargo xtask e2e` has one)";

/// A row of the selftest.
#[derive(Clone)]
pub(super) struct Item {
    /// `None` for healthy probes.
    pub(super) cause: Option<Cause>,
    /// The scenario that shows the cause, or the reason why none can.
    pub(super) how: Result<Scenario, String>,
}

/// The rows of these causes. An empty list means all causes and healthy probes.
pub(super) fn items(causes: &[Cause]) -> Vec<Item> {
    let scenarios = all();
    let wanted: Vec<Option<Cause>> = match causes {
        [] => std::iter::once(None).chain(Cause::ALL.iter().copied().map(Some)).collect(),
        causes => Cause::ALL.iter().filter(|cause| causes.contains(cause)).copied().map(Some).collect(),
    };
    wanted.into_iter().map(|cause| Item { cause, how: choose(cause, &scenarios, lacking) }).collect()
}

/// The first scenario that lacks nothing, or the reasons of all. One of the cause itself comes before one that has it only
/// in `also`.
fn choose(
    cause: Option<Cause>,
    scenarios: &[Scenario],
    lacking: impl Fn(&Scenario) -> Option<String>,
) -> Result<Scenario, String> {
    let mut reasons: Vec<String> = Vec::new();
    let (own, beside): (Vec<_>, Vec<_>) =
        scenarios.iter().filter(|scenario| shows(scenario, cause)).partition(|scenario| scenario.cause == cause);
    for scenario in own.into_iter().chain(beside) {
        match lacking(scenario) {
            None => return Ok(*scenario),
            Some(reason) if reasons.contains(&reason) => {}
            Some(reason) => reasons.push(reason),
        }
    }
    Err(if reasons.is_empty() { NEEDS_KUBELET.to_owned() } else { reasons.join("; ") })
}

/// Why a scenario cannot run here. The selftest never changes a setting of the whole machine, even of a virtual one.
fn lacking(scenario: &Scenario) -> Option<String> {
    if scenario.needs.contains(&Need::OwnMachine) {
        return Some("changes a setting of the whole machine (`cargo xtask test` runs it in a virtual one)".to_owned());
    }
    scenario.needs.iter().find_map(|need| need.lacking())
}

fn shows(scenario: &Scenario, cause: Option<Cause>) -> bool {
    scenario.cause == cause || (cause.is_some() && scenario.also == cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_scenario_unless_the_kubelets_log_decides() {
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
            ],
            "the others need a scenario: see CONTRIBUTING.md"
        );
        assert!(scenarios.iter().any(|s| shows(s, None)));
    }

    #[test]
    fn a_scenario_also_shows_the_cause_in_also() {
        let of = |cause| choose(Some(cause), &all(), |_| None).map(|s| s.name);
        assert_eq!(of(Cause::CpuThrottled), Ok("slow_response_throttled"));
        assert_eq!(of(Cause::SlowResponse), Ok("slow_response"));
    }

    #[test]
    fn a_scenario_of_the_cause_itself_comes_first() {
        for cause in Cause::ALL {
            let own = all().into_iter().find(|s| s.cause == Some(*cause));
            if let Some(own) = own {
                assert_eq!(choose(Some(*cause), &all(), |_| None).map(|s| s.name), Ok(own.name));
            }
        }
    }

    #[test]
    fn the_first_possible_scenario_is_chosen_or_each_reason_given_once() {
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
    fn a_scenario_that_changes_the_whole_machine_is_never_chosen() {
        let full = all().into_iter().find(|s| s.cause == Some(Cause::ConntrackTableFull));
        let why = full.and_then(|scenario| lacking(&scenario));
        assert!(why.is_some_and(|why| why.contains("`cargo xtask test`")));
    }

    #[test]
    fn a_cause_without_scenarios_has_a_reason() {
        assert_eq!(choose(Some(Cause::ExecFailed), &[], |_| None).err().as_deref(), Some(NEEDS_KUBELET));
    }
}
