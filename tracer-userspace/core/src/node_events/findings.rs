//! What the checks of the node came to, when that is not what it was.

use std::collections::BTreeMap;

use tracer_model::event::Findings;
use tracer_model::record::{FindingBody, Status};

/// The status of each finding.
pub(crate) type Known = BTreeMap<FindingKey, Status>;

/// A check, and of its findings the one for this family, this chain: the worst of it, if there are several.
type FindingKey = (String, String);

/// What tells the findings of one check apart; values that change from one look to the next do not.
const PLACE: [&str; 9] =
    ["family", "hook", "table", "chain", "port", "namespace", "pod_name", "container_name", "probe"];

fn key(finding: &FindingBody) -> FindingKey {
    let place: Vec<String> = PLACE.iter().filter_map(|name| Some(finding.fields.get(*name)?.to_string())).collect();
    (finding.check.clone(), place.join(" "))
}

/// The findings to report, the worst last. Of a known place: a changed status. At first, and of a new place: only what is
/// to be fixed. Of a place that is gone: only that its check is well, if it is.
pub(crate) fn new_records(findings: &Findings, known: &mut Known) -> Vec<FindingBody> {
    let mut now = Known::new();
    for finding in &findings.findings {
        let worst = now.entry(key(finding)).or_insert(finding.status);
        *worst = finding.status.max(*worst);
    }
    let was_bad = |check: &str| known.iter().any(|((of, _), status)| of == check && *status >= Status::Warn);
    let is_new = |finding: &&FindingBody| match known.get(&key(finding)) {
        Some(before) => now.get(&key(finding)) != Some(before),
        None => finding.status >= Status::Warn || was_bad(&finding.check),
    };
    let mut record_of: Vec<FindingBody> = findings.findings.iter().filter(is_new).cloned().collect();
    record_of.sort_by_key(|it| it.status);
    *known = now;
    record_of
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(of: &[(&str, &str, Status)]) -> Findings {
        let finding = |(check, family, status): &(&str, &str, Status)| {
            let mut finding = FindingBody::new(*check, *status);
            if !family.is_empty() {
                finding.fields.insert("family".to_owned(), (*family).into());
            }
            finding
        };
        Findings { findings: of.iter().map(finding).collect() }
    }

    #[test]
    fn only_what_changes_is_reported() {
        let mut known = Known::new();
        let mut record_of = |of: &[(&str, &str, Status)]| new_records(&findings(of), &mut known).len();
        let first =
            [("a", "", Status::Ok), ("b", "v4", Status::Fail), ("b", "v6", Status::Ok), ("c", "", Status::Unknown)];
        assert_eq!((record_of(&first), record_of(&first)), (1, 0));
        assert_eq!(
            record_of(&[("a", "", Status::Warn), ("b", "v4", Status::Ok), ("c", "", Status::Unknown)]),
            2,
            "worse, and fixed"
        );
    }

    #[test]
    fn a_second_fault_of_a_check_is_reported_and_that_all_are_fixed() {
        let mut known = Known::new();
        let mut record_of = |of: &[(&str, &str, Status)]| {
            new_records(&findings(of), &mut known).iter().map(|it| it.status).collect::<Vec<_>>()
        };
        assert_eq!(record_of(&[("policy", "v4", Status::Warn)]), [Status::Warn]);
        assert_eq!(record_of(&[("policy", "v4", Status::Warn), ("policy", "v6", Status::Warn)]), [Status::Warn]);
        assert_eq!(record_of(&[("policy", "v6", Status::Warn)]), [], "the other one is left");
        assert_eq!(record_of(&[("policy", "", Status::Ok)]), [Status::Ok]);
        assert_eq!(record_of(&[("policy", "", Status::Ok)]), []);
    }
}
