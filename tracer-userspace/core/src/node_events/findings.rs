//! Findings of the checks of the node that changed.

use std::collections::BTreeMap;

use tracer_model::event::Findings;
use tracer_model::record::{FindingBody, Status};

/// What is known of the checks.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The status of each finding.
    places: BTreeMap<FindingKey, Status>,
    /// The status of the last record of each check.
    reported: BTreeMap<String, Status>,
}

/// A check, and the place of the finding: a family or a chain, for example. The worst finding of a place counts.
type FindingKey = (String, String);

/// Fields that name the place of a finding. Values that change from one run of the check to the next are none of them.
const PLACE: [&str; 9] =
    ["family", "hook", "table", "chain", "port", "namespace", "pod_name", "container_name", "probe"];

fn key(finding: &FindingBody) -> FindingKey {
    let place: Vec<String> = PLACE.iter().filter_map(|name| Some(finding.fields.get(*name)?.to_string())).collect();
    (finding.check.clone(), place.join(" "))
}

/// The findings to report, the worst last. For a known place: a changed status. At first, and for a new place: only a
/// status that needs a fix. For a place that is gone: only that its check is well again. The readers of the records know
/// no places, so the last record of a check has the worst status of all its places: else that finding is reported again.
pub(crate) fn new_records(findings: &Findings, known: &mut Known) -> Vec<FindingBody> {
    let mut now = BTreeMap::new();
    let mut worst: BTreeMap<&str, &FindingBody> = BTreeMap::new();
    for finding in &findings.findings {
        let of_place = now.entry(key(finding)).or_insert(finding.status);
        *of_place = finding.status.max(*of_place);
        let of_check = worst.entry(&finding.check).or_insert(finding);
        if finding.status > of_check.status {
            *of_check = finding;
        }
    }
    let was_bad = |check: &str| known.places.iter().any(|((of, _), status)| of == check && *status >= Status::Warn);
    let is_new = |finding: &&FindingBody| match known.places.get(&key(finding)) {
        Some(before) => now.get(&key(finding)) != Some(before),
        None => finding.status >= Status::Warn || was_bad(&finding.check),
    };
    let mut records: Vec<FindingBody> = findings.findings.iter().filter(is_new).cloned().collect();
    records.sort_by_key(|it| it.status);
    known.places = now;
    known.reported.extend(records.iter().map(|it| (it.check.clone(), it.status)));
    for finding in worst.into_values() {
        if known.reported.get(&finding.check).is_some_and(|last| *last != finding.status) {
            known.reported.insert(finding.check.clone(), finding.status);
            records.push(finding.clone());
        }
    }
    records
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
    fn only_a_changed_status_is_reported() {
        let mut known = Known::default();
        let mut reports = |of: &[(&str, &str, Status)]| new_records(&findings(of), &mut known).len();
        let first =
            [("a", "", Status::Ok), ("b", "v4", Status::Fail), ("b", "v6", Status::Ok), ("c", "", Status::Unknown)];
        assert_eq!((reports(&first), reports(&first)), (1, 0));
        assert_eq!(
            reports(&[("a", "", Status::Warn), ("b", "v4", Status::Ok), ("c", "", Status::Unknown)]),
            2,
            "worse, and fixed"
        );
    }

    /// The states of the new records after each reading.
    fn reports() -> impl FnMut(&[(&str, &str, Status)]) -> Vec<Status> {
        let mut known = Known::default();
        move |of| new_records(&findings(of), &mut known).iter().map(|it| it.status).collect()
    }

    #[test]
    fn a_second_fault_of_a_check_and_the_end_of_all_are_reported() {
        let mut reports = reports();
        assert_eq!(reports(&[("policy", "v4", Status::Warn)]), [Status::Warn]);
        assert_eq!(reports(&[("policy", "v4", Status::Warn), ("policy", "v6", Status::Warn)]), [Status::Warn]);
        assert_eq!(reports(&[("policy", "v6", Status::Warn)]), [], "the other one is left");
        assert_eq!(reports(&[("policy", "", Status::Ok)]), [Status::Ok]);
        assert_eq!(reports(&[("policy", "", Status::Ok)]), []);
    }

    /// Who reads the records keeps the last status of each check.
    #[test]
    fn the_last_record_of_a_check_is_of_its_worst_place() {
        let mut reports = reports();
        let v4 = ("forward", "v4", Status::Fail);
        assert_eq!(reports(&[v4, ("forward", "v6", Status::Fail)]), [Status::Fail; 2]);
        assert_eq!(reports(&[v4, ("forward", "v6", Status::Ok)]), [Status::Ok, Status::Fail]);
        assert_eq!(reports(&[v4, ("forward", "v6", Status::Warn)]), [Status::Warn, Status::Fail]);
        assert_eq!(reports(&[("forward", "v6", Status::Warn)]), [Status::Warn], "the failed place is gone");
        assert_eq!(reports(&[("forward", "v6", Status::Warn)]), []);
    }
}
