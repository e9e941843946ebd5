//! The cells of label × proxy × address family that no scenario covers, each with the reason.

use crate::record::Label;

use super::{Proxy, Scenario};
use crate::selftest::row::{Played, Row};
use crate::selftest::world::Family;

/// What is known not to be there, and why: label (none: nothing is wrong), proxy, family; none: each of them.
type Reason = (Option<Label>, Option<Proxy>, Option<Family>, &'static str);

const REASONS: &[Reason] = &[
    (
        Some(Label::NodeportEphemeralCollision),
        Some(Proxy::Iptables),
        None,
        "harmless there: the SYN-ACK belongs to a known conntrack entry, and no label may come (a healthy scenario shows it)",
    ),
    (
        Some(Label::NodeportEphemeralCollision),
        Some(Proxy::Nftables),
        None,
        "harmless there: the SYN-ACK belongs to a known conntrack entry, and no label may come (a healthy scenario shows it)",
    ),
    (Some(Label::CpuThrottled), None, None, "stands beside another label only: slow_response_throttled shows it"),
    (Some(Label::ExecTimeout), None, None, NEEDS_KUBELET),
    (Some(Label::ExecFailed), None, None, NEEDS_KUBELET),
    (Some(Label::CniNotReady), None, None, NEEDS_KUBELET),
];

const NEEDS_KUBELET: &str = "needs a real kubelet, on whose own words it rests (`cargo xtask e2e` has one)";
const NO_SCENARIO: &str = "no scenario";
const NOT_IN_FAMILY: &str = "no scenario in this address family";
const NOT_IN_MODE: &str = "no scenario in this proxy mode";

/// A row for each cell without a scenario. Where a label's story has no proxy in it, one line for each
/// address family stands for all modes; where it has one, every mode has a line.
#[must_use]
pub fn rows(scenarios: &[Scenario]) -> Vec<Row> {
    let labels = std::iter::once(None).chain(Label::ALL.iter().copied().map(Some));
    labels.flat_map(|label| of_label(scenarios, label)).collect()
}

fn of_label(scenarios: &[Scenario], label: Option<Label>) -> Vec<Row> {
    let of: Vec<&Scenario> = scenarios.iter().filter(|s| s.label == label).collect();
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
        gap(label, proxy, family, reason(label, proxy, family).unwrap_or(default))
    })
    .collect()
}

/// Why no scenario is about this label.
#[must_use]
pub fn why_none(label: Label) -> &'static str {
    reason(Some(label), Proxy::Any, Family::V4).unwrap_or(NO_SCENARIO)
}

fn reason(label: Option<Label>, proxy: Proxy, family: Family) -> Option<&'static str> {
    let fits = |(l, p, f, _): &&Reason| *l == label && p.is_none_or(|p| p == proxy) && f.is_none_or(|f| f == family);
    REASONS.iter().find(fits).map(|(.., why)| *why)
}

fn gap(label: Option<Label>, proxy: Proxy, family: Family, why: &str) -> Row {
    let nothing = Scenario::new("", label, |_| Ok(())).proxy(proxy);
    let row = Row::new(&nothing);
    Row { family: family.name(), result: Played::Absent, reason: Some(why.to_owned()), ..row }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_has_a_line_in_both_families() {
        let scenarios = super::super::all();
        let gaps = rows(&scenarios);
        for label in std::iter::once(None).chain(Label::ALL.iter().copied().map(Some)) {
            for family in [Family::V4, Family::V6] {
                let covered = scenarios.iter().any(|s| s.label == label && s.family == family);
                let name = label.map(Label::name);
                assert!(covered || gaps.iter().any(|g| g.label == name && g.family == family.name()), "{label:?}");
            }
        }
    }

    #[test]
    fn no_gap_where_a_scenario_is() {
        let scenarios = super::super::all();
        for gap in rows(&scenarios) {
            let covers = |s: &&Scenario| {
                s.label.map(Label::name) == gap.label && s.proxy.name() == gap.proxy && s.family.name() == gap.family
            };
            assert!(!scenarios.iter().any(|s| covers(&s)), "{gap:?}");
        }
    }
}
