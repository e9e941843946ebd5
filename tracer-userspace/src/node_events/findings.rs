//! What the checks of the node came to, when that is not what it was.

use std::collections::BTreeMap;

use crate::event::Findings;
use crate::record::{FindingBody, Status};

/// The worst status of each check.
pub(crate) type Known = BTreeMap<String, Status>;

/// Findings to be told: those of a check whose worst status changed; at first, what is to be mended. The worst last.
pub(crate) fn news(findings: &Findings, known: &mut Known) -> Vec<FindingBody> {
    let mut now = Known::new();
    for finding in &findings.findings {
        let worst = now.entry(finding.check.clone()).or_insert(finding.status);
        *worst = finding.status.max(*worst);
    }
    let changed = |check: &str, status: Status| match known.get(check) {
        Some(before) => *before != status,
        None => status >= Status::Warn,
    };
    let told = findings.findings.iter().filter(|it| now.get(&it.check).is_some_and(|worst| changed(&it.check, *worst)));
    let mut told: Vec<FindingBody> = told.cloned().collect();
    told.sort_by_key(|it| it.status);
    *known = now;
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(of: &[(&str, Status)]) -> Findings {
        Findings { findings: of.iter().map(|(check, status)| FindingBody::new(*check, *status)).collect() }
    }

    #[test]
    fn only_what_changes_is_told() {
        let mut known = Known::new();
        let mut told = |of: &[(&str, Status)]| news(&findings(of), &mut known).len();
        assert_eq!(told(&[("a", Status::Ok), ("b", Status::Fail), ("b", Status::Ok), ("c", Status::Unknown)]), 2);
        assert_eq!(told(&[("a", Status::Ok), ("b", Status::Fail), ("b", Status::Ok), ("c", Status::Unknown)]), 0);
        assert_eq!(told(&[("a", Status::Warn), ("b", Status::Ok), ("c", Status::Unknown)]), 2, "worse, and mended");
    }
}
