//! The combinations of cause, proxy and address family that no scenario covers, with the reasons.

use tracer_model::record::Cause;

use super::{Proxy, Scenario};
use crate::node::Family;
use crate::row::{Row, RowOutcome};

/// Cause (`None`: healthy), proxy (`None`: each), address family (`None`: both), and the reason.
type Reason = (Option<Cause>, Option<Proxy>, Option<Family>, &'static str);

const REASONS: &[Reason] = &[
    (Some(Cause::NodeportEphemeralCollision), Some(Proxy::Iptables), None, HARMLESS_WITH_NAT),
    (Some(Cause::NodeportEphemeralCollision), Some(Proxy::Nftables), None, HARMLESS_WITH_NAT),
    (
        Some(Cause::CpuThrottled),
        None,
        None,
        "is only in `also`, beside another cause: slow_response_throttled shows it",
    ),
    (Some(Cause::ExecTimeout), None, None, NEEDS_KUBELET),
    (Some(Cause::ExecNotRun), None, None, NEEDS_KUBELET),
    (Some(Cause::ExecFailed), None, None, NEEDS_KUBELET),
    (Some(Cause::KubeletClientError), None, None, NEEDS_KUBELET),
    (Some(Cause::CniNotReady), None, None, NEEDS_KUBELET),
];

const HARMLESS_WITH_NAT: &str =
    "harmless here: conntrack knows the connection of the SYN-ACK. A healthy scenario expects no verdict";
const NEEDS_KUBELET: &str = "needs a real kubelet, because its log decides (`cargo xtask e2e` has one)";
const NO_SCENARIO: &str = "no scenario";
const NOT_IN_FAMILY: &str = "no scenario in this address family";
const NOT_IN_MODE: &str = "no scenario in this proxy mode";

/// A row for each combination without a scenario.
///
/// If the scenarios of a cause involve a proxy, each proxy mode has a row. Otherwise a single row for each address
/// family stands for all modes.
pub fn rows(scenarios: &[Scenario]) -> Vec<Row> {
    let causes = std::iter::once(None).chain(Cause::ALL.iter().copied().map(Some));
    causes.flat_map(|cause| of_cause(scenarios, cause)).collect()
}

fn of_cause(scenarios: &[Scenario], cause: Option<Cause>) -> Vec<Row> {
    let of: Vec<&Scenario> = scenarios.iter().filter(|s| s.cause == cause).collect();
    let proxied = of.iter().any(|s| s.proxy != Proxy::Any);
    let plain = of.is_empty() || of.iter().any(|s| s.proxy == Proxy::Any);
    let wanted = |proxy: Proxy| if proxy == Proxy::Any { plain } else { proxied };
    let cells = Proxy::ALL.into_iter().filter(|proxy| wanted(*proxy)).flat_map(|p| [(p, Family::V4), (p, Family::V6)]);
    let open = cells.filter(|(proxy, family)| !of.iter().any(|s| s.proxy == *proxy && s.family == *family));
    open.map(|(proxy, family)| {
        let default = match (of.is_empty(), of.iter().any(|s| s.proxy == proxy)) {
            (true, _) => NO_SCENARIO,
            (false, true) => NOT_IN_FAMILY,
            (false, false) => NOT_IN_MODE,
        };
        gap(cause, proxy, family, reason(cause, proxy, family).unwrap_or(default))
    })
    .collect()
}

/// Why this cause has no scenario.
pub fn why_none(cause: Cause) -> &'static str {
    reason(Some(cause), Proxy::Any, Family::V4).unwrap_or(NO_SCENARIO)
}

fn reason(cause: Option<Cause>, proxy: Proxy, family: Family) -> Option<&'static str> {
    let fits = |(l, p, f, _): &&Reason| *l == cause && p.is_none_or(|p| p == proxy) && f.is_none_or(|f| f == family);
    REASONS.iter().find(fits).map(|(.., why)| *why)
}

fn gap(cause: Option<Cause>, proxy: Proxy, family: Family, why: &str) -> Row {
    let nothing = Scenario::new("", cause, |_| Ok(())).proxy(proxy);
    let row = Row::new(&nothing);
    Row { family: family.name(), result: RowOutcome::Absent, reason: Some(why.to_owned()), ..row }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_scenario_or_a_gap_in_both_families() {
        let scenarios = super::super::all();
        let gaps = rows(&scenarios);
        for cause in std::iter::once(None).chain(Cause::ALL.iter().copied().map(Some)) {
            for family in [Family::V4, Family::V6] {
                let covered = scenarios.iter().any(|s| s.cause == cause && s.family == family);
                let name = cause.map(Cause::name);
                assert!(covered || gaps.iter().any(|g| g.cause == name && g.family == family.name()), "{cause:?}");
            }
        }
    }

    #[test]
    fn a_combination_with_a_scenario_is_no_gap() {
        let scenarios = super::super::all();
        for gap in rows(&scenarios) {
            let covers = |s: &&Scenario| {
                s.cause.map(Cause::name) == gap.cause && s.proxy.name() == gap.proxy && s.family.name() == gap.family
            };
            assert!(!scenarios.iter().any(|s| covers(&s)), "{gap:?}");
        }
    }
}
