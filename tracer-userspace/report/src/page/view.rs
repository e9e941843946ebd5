//! The tally, sorted for the page: the worst first.

use std::collections::{BTreeMap, HashSet};

use super::super::line::{Group, PodKey};
use super::super::tally::{Ends, Example, Scale};
use super::super::tally::{Events, Lane, Pod, RUNS, Run, SURE, Tally};
use super::axis::Axis;
use super::words;
use tracer_model::record::{FindingBody, Status};

/// Pairs of pod and cause that have their evidence on the page.
pub(super) const WITH_EVIDENCE: usize = 250;
/// A cause is over if its last failure is this old. Verdicts that go on are printed each minute.
const OVER_US: i64 = 300_000_000;
/// Colours that are distinguished.
const COLOURS: usize = 8;

/// A pod with the columns of its series.
pub(super) struct Row {
    pub(super) key: PodKey,
    /// Attempts that failed.
    pub(super) failures: u64,
    pub(super) passed: u64,
    pub(super) passed_when: Vec<(i64, u64)>,
    pub(super) cells: Vec<Cell>,
}

/// One cause at one pod.
pub(super) struct Cell {
    /// Index of the cause in the list of causes.
    pub(super) group: usize,
    pub(super) lane: Lane,
    pub(super) columns: Vec<(i64, u64)>,
}

/// A cause over all pods.
pub(super) struct GroupView {
    pub(super) group: Group,
    /// Verdicts that are not revised.
    pub(super) count: u64,
    pub(super) pods: u64,
    pub(super) confidences: [u64; 3],
    pub(super) span: (i64, i64),
    /// Nothing failed so for the last [`OVER_US`].
    pub(super) is_over: bool,
}

pub(super) struct View {
    pub(super) axis: Axis,
    pub(super) groups: Vec<GroupView>,
    /// Pods with a verdict, the worst first.
    pub(super) rows: Vec<Row>,
    /// Numbers of the verdicts with evidence on the page.
    pub(super) evidence: HashSet<u64>,
    /// Pods without a verdict.
    pub(super) clean: u64,
    pub(super) failures: u64,
    pub(super) misleading: u64,
    pub(super) passed: u64,
    pub(super) attempts: Option<u64>,
    pub(super) nodes: Vec<String>,
    pub(super) events: Events,
    pub(super) marks: Vec<(String, Vec<(i64, u64)>)>,
    /// Times in which events were lost.
    pub(super) gaps: Vec<(i64, i64)>,
    pub(super) findings: BTreeMap<(String, String), FindingBody>,
    pub(super) runs: Ends<Run, RUNS>,
    /// Why no failure passed the filter.
    pub(super) hidden: Option<String>,
    /// What a reader must know about the numbers.
    pub(super) notes: Vec<String>,
}

impl View {
    pub(super) fn new(mut tally: Tally, faults: &[String]) -> Self {
        let scale = tally.scale;
        let mut notes = notes(&tally, faults);
        let hidden = tally.nothing_shown();
        notes.extend(tally.shown().filter(|_| hidden.is_none()));
        let nodes = tally.nodes().into_iter().map(str::to_owned).collect();
        let attempts = tally.attempts();
        let pods: Vec<_> = tally.pods.into_pods().collect();
        let groups = groups(&pods, &scale);
        let clean = pods.iter().filter(|(_, pod)| pod.lanes.is_empty()).count() as u64;
        let passed = pods.iter().map(|(_, pod)| pod.passed).sum();
        let with_verdict = pods.into_iter().filter(|(_, pod)| !pod.lanes.is_empty());
        let mut rows: Vec<_> = with_verdict.map(|(key, pod)| row(key, pod, &groups, &scale)).collect();
        rows.sort_by(|a, b| b.failures.cmp(&a.failures).then_with(|| a.key.cmp(&b.key)));
        let sum = |noise| groups.iter().filter(|it| it.group.noise == noise).map(|it| it.count).sum();
        let failures = sum(false);
        let series = tally.events.series.iter_mut();
        Self {
            axis: Axis::new(&scale),
            marks: series.map(|(kind, series)| (kind.clone(), series.columns(&scale).collect())).collect(),
            failures,
            misleading: sum(true),
            evidence: evidence(&rows),
            groups,
            rows,
            clean,
            passed,
            attempts: attempts.map(|attempts| attempts.max(failures + passed)),
            nodes,
            events: tally.events,
            gaps: tally.losses.into_gaps(),
            findings: tally.findings,
            runs: tally.runs,
            hidden,
            notes,
        }
    }

    /// A pod's name, with its node if there are several nodes.
    pub(super) fn pod_name(&self, key: &PodKey) -> String {
        match (self.nodes.len() > 1, key.node.is_empty()) {
            (true, false) => format!("{} on {}", key.name, key.node),
            _ => key.name.clone(),
        }
    }

    /// Cells of a cause, the one with most verdicts first.
    pub(super) fn cells(&self, group: usize) -> impl Iterator<Item = (&Row, &Cell)> {
        let cells = self.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
        let mut cells: Vec<_> = cells.filter(|(_, cell)| cell.group == group).collect();
        cells.sort_by_key(|(_, cell)| std::cmp::Reverse(cell.lane.count));
        cells.into_iter()
    }
}

impl Cell {
    /// The first and the last verdict, or the only one.
    pub(super) fn examples(&self) -> impl Iterator<Item = &Example> {
        let (first, last) = (self.lane.first.as_deref(), self.lane.last.as_deref());
        first.into_iter().chain(last.filter(|last| first.is_none_or(|first| first.id != last.id)))
    }
}

/// `A` to `Z`, then `A2` and so on.
pub(super) fn letter(group: usize) -> String {
    let letter = char::from(b'A' + u8::try_from(group % 26).unwrap_or(0));
    if group < 26 { letter.to_string() } else { format!("{letter}{}", group / 26 + 1) }
}

/// The CSS class of a cause, which gives its colour.
pub(super) fn colour(group: usize) -> String {
    format!("c{}", group % COLOURS)
}

/// The confidence of some verdicts; if it differs, the count of each, the strongest first.
pub(super) fn confidence_text(counts: [u64; 3]) -> String {
    let some = SURE.iter().zip(counts).rev().filter(|(_, count)| *count > 0);
    let some: Vec<_> = some.collect();
    match some.as_slice() {
        [(name, _)] => name.to_string(),
        some => some.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", "),
    }
}

/// All causes: failures before noise, what is broken now before what is over, then by severity, scope (the node first)
/// and count.
fn groups(pods: &[(PodKey, Pod)], scale: &Scale) -> Vec<GroupView> {
    let mut sums: BTreeMap<Group, GroupView> = BTreeMap::new();
    for (&group, lane) in pods.iter().flat_map(|(_, pod)| &pod.lanes) {
        let none =
            GroupView { group, count: 0, pods: 0, confidences: [0; 3], span: (i64::MAX, i64::MIN), is_over: false };
        let sum = sums.entry(group).or_insert(none);
        sum.count += lane.count;
        sum.pods += 1;
        (0..3).for_each(|i| sum.confidences[i] += lane.confidences[i]);
        sum.span.0 = lane.first.as_ref().map_or(sum.span.0, |first| sum.span.0.min(first.us));
        sum.span.1 = lane.last.as_ref().map_or(sum.span.1, |last| sum.span.1.max(last.us));
    }
    let mut groups: Vec<_> = sums.into_values().collect();
    let end = scale.span.map_or(i64::MIN, |(_, end)| end);
    groups.iter_mut().for_each(|it| it.is_over = it.span.1 < end.saturating_sub(OVER_US));
    groups.sort_by_key(|it| {
        let cause = it.group.cause;
        let acts = (cause.severity(), cause.scope().is_none(), cause.scope());
        (it.group.noise, it.is_over, acts, std::cmp::Reverse(it.count), it.span.0)
    });
    groups
}

fn row(key: PodKey, mut pod: Pod, groups: &[GroupView], scale: &Scale) -> Row {
    let failures = pod.lanes.iter().filter(|(group, _)| !group.noise).map(|(_, lane)| lane.count).sum();
    let passed_when = pod.passed_when.columns(scale).collect();
    let place = |group| groups.iter().position(|it| it.group == group).unwrap_or(0);
    let cell = |(group, mut lane): (Group, Lane)| {
        let columns = lane.series.columns(scale).collect();
        Cell { group: place(group), lane, columns }
    };
    let mut cells: Vec<_> = pod.lanes.into_iter().map(cell).collect();
    cells.sort_by_key(|cell| cell.group);
    Row { key, failures, passed: pod.passed, passed_when, cells }
}

/// The verdicts of the worst pods.
fn evidence(rows: &[Row]) -> HashSet<u64> {
    let cells = rows.iter().flat_map(|row| &row.cells).take(WITH_EVIDENCE);
    cells.flat_map(Cell::examples).map(|example| example.id).collect()
}

/// What a reader must know about the numbers.
fn notes(tally: &Tally, faults: &[String]) -> Vec<String> {
    let mut notes = faults.to_vec();
    let lost: Vec<_> =
        tally.losses.counts.iter().map(|(place, count)| format!("{} ({place})", words::number(*count))).collect();
    if !lost.is_empty() {
        notes.push(format!("Events were lost, {}: verdicts of that time are missing or less sure", lost.join(", ")));
    }
    let failing: Vec<_> = tally.findings.values().filter(|it| it.status == Status::Fail).collect();
    if !failing.is_empty() {
        let names: Vec<_> = failing.iter().map(|it| it.check.as_str()).collect();
        notes.push(format!("Checks of the node fail (tracer doctor): {}; see below", names.join(", ")));
    }
    let mut say = |reported: bool, note: &dyn Fn() -> String| notes.extend(reported.then(note));
    say(tally.revised > 0, &|| {
        format!("Not counted, because a later verdict replaces them: {}", words::count(tally.revised, "verdict"))
    });
    let twice = "Counted twice, because the earlier verdicts that they replace are too far back";
    say(tally.unmatched > 0, &|| format!("{twice}: {}", words::count(tally.unmatched, "verdict")));
    say(tally.pods.too_many, &|| "More than 2,048 pods: those that came later are one row, `all other pods`".into());
    let left_out = [("finding", tally.findings_left_out), ("port account", tally.events.ports_left_out)];
    for (what, n) in left_out {
        say(n > 0, &|| format!("{} left out: there are too many nodes", words::count(n, what)));
    }
    say(tally.pods.full, &|| "There was no room to keep every verdict that would be shown as an example".into());
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!([0, 25, 26, 60].map(letter), ["A", "Z", "A2", "I3"]);
    }

    #[test]
    fn counts_of_confidences_are_shown_only_if_they_differ() {
        assert_eq!(confidence_text([0, 0, 4]), "proven");
        assert_eq!(confidence_text([1, 0, 4]), "4 proven, 1 possible");
    }
}
