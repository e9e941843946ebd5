//! The recordings of `tests/fixtures`, as streams from which the properties build others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::testing::decide;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Observation, ObservationKind};
use tracer_model::record::{Body, Confidence, Outcome};

/// A recording and the verdicts of its replay.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// Its folder below `tests/fixtures`.
    pub(crate) name: String,
    /// The observations as JSON, the form in which they are renamed.
    pub(crate) lines: Vec<Value>,
    /// The observations themselves.
    pub(crate) observations: Vec<Observation>,
    /// The verdicts of a replay.
    pub(crate) reported: AttemptVerdicts,
}

impl Recorded {
    /// The kernel of the recording: a node has one, and rules ask for it.
    pub(crate) fn kernel(&self) -> &str {
        let start = self.observations.iter().find_map(|o| match &o.kind {
            ObservationKind::Start(start) => Some(start.kernel.as_str()),
            _ => None,
        });
        start.unwrap_or_default()
    }
}

/// The verdicts of each attempt, in order.
pub(crate) type AttemptVerdicts = BTreeMap<ConnId, Vec<Verdict>>;

/// The parts of a verdict that must stay the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) cause: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) confidence: Confidence,
}

/// All recordings, read once.
pub(crate) fn recordings() -> &'static [Recorded] {
    static RECORDINGS: OnceLock<Vec<Recorded>> = OnceLock::new();
    RECORDINGS.get_or_init(|| {
        let mut files = Vec::new();
        find(&root(), &mut files);
        files.sort();
        assert!(!files.is_empty(), "no recordings below {}", root().display());
        files.iter().map(|file| read(file)).collect()
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

fn find(place: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(place).expect("tests/fixtures").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find(&path, files);
        } else if path.ends_with("observations.ndjson") {
            files.push(path);
        }
    }
}

fn read(file: &Path) -> Recorded {
    let text = std::fs::read_to_string(file).expect("a recording");
    let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line of a recording is JSON"));
    let lines: Vec<Value> = lines.filter(|line: &Value| line.get("observation").is_some()).collect();
    let observations = parse(&lines);
    let name = file.parent().and_then(|dir| dir.strip_prefix(root()).ok()).unwrap_or(file);
    let reported = reported(&decide(&observations));
    Recorded { name: name.display().to_string(), lines, observations, reported }
}

/// Observations from their JSON.
pub(crate) fn parse(lines: &[Value]) -> Vec<Observation> {
    lines.iter().map(|line| serde_json::from_value(line.clone()).expect("an observation")).collect()
}

/// The verdicts among decisions.
pub(crate) fn reported(decisions: &[Decision]) -> AttemptVerdicts {
    let mut reported = AttemptVerdicts::new();
    for decision in decisions {
        if let (Some(conn), Body::Verdict(v)) = (decision.attempt, &decision.body) {
            let v = &v.verdict;
            let verdict = Verdict { cause: v.cause.name(), outcome: v.outcome, confidence: v.confidence };
            reported.entry(conn).or_default().push(verdict);
        }
    }
    reported
}

/// The causes alone, for streams in which texts and numbers may differ.
pub(crate) fn causes(reported: &AttemptVerdicts) -> BTreeMap<ConnId, Vec<&'static str>> {
    reported.iter().map(|(conn, verdicts)| (*conn, verdicts.iter().map(|v| v.cause).collect())).collect()
}

/// The attempts that a stream begins.
pub(crate) fn begun(observations: &[Observation]) -> Vec<ConnId> {
    let conn = |o: &Observation| match &o.kind {
        ObservationKind::Connect(c) => Some(c.conn),
        _ => None,
    };
    observations.iter().filter_map(conn).collect()
}
