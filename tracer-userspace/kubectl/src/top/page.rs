//! The page: for people, or one JSON object for scripts.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::super::skew;
use super::tally::{CauseTally, Causes, Owner};
use tracer_model::plural::counted;
use tracer_model::record::{Cause, Workload};
use tracer_terminal::screen::{Screen, Style};

/// Culprits, workloads and nodes of a cause that are named.
const NAMED: usize = 3;
/// Of the nodes that gave nothing.
const NAMED_NODES: usize = 10;

/// Which nodes are on the page.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) answered: u64,
    /// Nodes that gave nothing, or not all, and why.
    pub(crate) without: Vec<(String, String)>,
    /// Nodes with a longer log than the limit.
    pub(crate) cut: Vec<String>,
    /// Nodes with another time, in seconds.
    pub(crate) skewed: Vec<(String, i64)>,
    /// Lines that are no records.
    pub(crate) unreadable: u64,
}

pub(crate) struct Page {
    causes: Vec<(Cause, CauseTally)>,
    answers: Answers,
    since: Duration,
}

#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    since_s: u64,
    nodes: JsonNodes<'a>,
    causes: Vec<JsonCause<'a>>,
}

#[derive(Serialize)]
struct JsonNodes<'a> {
    answered: u64,
    without_answer: Vec<JsonNode<'a>>,
    log_cut: &'a [String],
    clock_differs: Vec<JsonClock<'a>>,
}

#[derive(Serialize)]
struct JsonNode<'a> {
    node_name: &'a str,
    problem: &'a str,
}

#[derive(Serialize)]
struct JsonClock<'a> {
    node_name: &'a str,
    ahead_at_least_s: i64,
}

#[derive(Serialize)]
struct JsonCause<'a> {
    cause: Cause,
    pods: u64,
    nodes: usize,
    verdicts: u64,
    first_time: String,
    last_time: String,
    first_nodes: Vec<JsonFirst<'a>>,
    culprits: Vec<JsonCulprit<'a>>,
    workloads: Vec<JsonWorkload<'a>>,
}

#[derive(Serialize)]
struct JsonFirst<'a> {
    node_name: &'a str,
    time: String,
}

#[derive(Serialize)]
struct JsonCulprit<'a> {
    culprit: &'a str,
    nodes: u64,
    first_time: String,
    first_node: &'a str,
}

#[derive(Serialize)]
struct JsonWorkload<'a> {
    namespace: &'a str,
    #[serde(flatten)]
    workload: &'a Workload,
    pods: u64,
}

impl Page {
    pub(crate) fn new(causes: Causes, answers: Answers, since: Duration) -> Self {
        Self { causes: causes.ranked(), answers, since }
    }

    /// Every node that was asked is on it, with all of its log.
    pub(crate) fn is_whole(&self) -> bool {
        self.answers.without.is_empty() && self.answers.cut.is_empty()
    }

    /// What is missing on it, and what makes it less sure: one line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Answers { without, cut, skewed, unreadable, .. } = &self.answers;
        let more =
            |all: usize| if all > NAMED_NODES { format!("; and {} more", all - NAMED_NODES) } else { String::new() };
        let mut warnings = Vec::new();
        if !without.is_empty() {
            let named: Vec<_> = without.iter().take(NAMED_NODES).map(|(node, why)| format!("{node}: {why}")).collect();
            warnings.push(format!(
                "{} gave no answer: {}{}",
                counted(without.len() as u64, "node"),
                named.join("; "),
                more(without.len())
            ));
        }
        if !cut.is_empty() {
            let named = cut.iter().take(NAMED_NODES).map(String::as_str).collect::<Vec<_>>().join(", ");
            warnings.push(format!(
                "the newest records of {named}{} are missing: shorten --since or raise --limit-bytes",
                more(cut.len())
            ));
        }
        if !skewed.is_empty() {
            let named: Vec<_> = skewed.iter().take(NAMED_NODES).map(|(node, s)| skew::text(node, *s)).collect();
            warnings.push(format!(
                "clocks differ, so the order of nodes is not sure: {}{}",
                named.join(", "),
                more(skewed.len())
            ));
        }
        if *unreadable > 0 {
            warnings.push(format!("{} could not be read", counted(*unreadable, "line")));
        }
        warnings
    }

    pub(crate) fn text(&self, screen: Screen) -> String {
        let mut out = String::new();
        let head = format!(
            "{} answered; failures of the last {}, times in UTC",
            counted(self.answers.answered, "node"),
            lasted(self.since)
        );
        screen.head(&mut out, &head);
        if self.causes.is_empty() {
            screen.head(&mut out, &screen.paint(Style::Good, "no failure in these logs"));
        }
        for (cause, tally) in &self.causes {
            block(&mut out, *cause, tally, screen);
        }
        out
    }

    /// For scripts: one object, one line.
    pub(crate) fn json(&self) -> String {
        let Answers { answered, without, cut, skewed, .. } = &self.answers;
        let nodes = JsonNodes {
            answered: *answered,
            without_answer: without.iter().map(|(node_name, problem)| JsonNode { node_name, problem }).collect(),
            log_cut: cut,
            clock_differs: skewed.iter().map(|(node_name, s)| JsonClock { node_name, ahead_at_least_s: *s }).collect(),
        };
        let causes = self.causes.iter().map(|(cause, tally)| json_cause(*cause, tally)).collect();
        let json = Json { schema: "tracer-top/1", since_s: self.since.as_secs(), nodes, causes };
        // Names are strings and numbers are whole: nothing in these types can fail.
        serde_json::to_string(&json).unwrap_or_default() + "\n"
    }
}

fn json_cause(cause: Cause, tally: &CauseTally) -> JsonCause<'_> {
    let first = |(node_name, us)| JsonFirst { node_name, time: time(us) };
    JsonCause {
        cause,
        pods: tally.pods,
        nodes: tally.nodes.len(),
        verdicts: tally.verdicts,
        first_time: time(tally.first_us()),
        last_time: time(tally.last_us),
        first_nodes: tally.first_nodes(NAMED_NODES).into_iter().map(first).collect(),
        culprits: tally
            .culprits
            .iter()
            .map(|(culprit, it)| JsonCulprit {
                culprit,
                nodes: it.count,
                first_time: time(it.first_us),
                first_node: &it.first,
            })
            .collect(),
        workloads: owners(tally)
            .into_iter()
            .map(|((namespace, workload), pods)| JsonWorkload { namespace, workload, pods })
            .collect(),
    }
}

fn block(out: &mut String, cause: Cause, tally: &CauseTally, screen: Screen) {
    let nodes = tally.nodes.len();
    let head = format!(
        "{}  {} on {}, {}, {} to {}",
        screen.paint(Style::Bad, cause.name()),
        counted(tally.pods, "pod"),
        counted(nodes as u64, "node"),
        counted(tally.verdicts, "failure"),
        clock(tally.first_us()),
        clock(tally.last_us),
    );
    out.push('\n');
    screen.head(out, &head);
    if nodes > 1 {
        let first: Vec<_> =
            tally.first_nodes(NAMED).iter().map(|(node, us)| format!("{node} {}", clock(*us))).collect();
        screen.row(out, "first on", &first.join(", "));
    }
    let mut culprits: Vec<_> = tally.culprits.iter().collect();
    culprits.sort_by_key(|(_, it)| Reverse(it.count));
    for (culprit, it) in culprits.iter().take(NAMED) {
        let text = format!(
            "{culprit}; the same on {} since {}, first {}",
            counted(it.count, "node"),
            clock(it.first_us),
            it.first
        );
        screen.row(out, "culprit", &text);
    }
    if culprits.len() > NAMED {
        screen.row(out, "", &format!("and {} more", culprits.len() - NAMED));
    }
    let owners = owners(tally);
    let named: Vec<_> = owners
        .iter()
        .take(NAMED)
        .map(|((namespace, it), pods)| format!("{} {namespace}/{} ({})", it.kind, it.name, counted(*pods, "pod")))
        .collect();
    let more = if owners.len() > NAMED { format!(", and {} more", owners.len() - NAMED) } else { String::new() };
    if !named.is_empty() {
        screen.row(out, "workload", &format!("{}{more}", named.join(", ")));
    }
    screen.row(out, "explain", &format!("tracer explain {}", cause.name()));
}

/// Those with most pods first.
fn owners(tally: &CauseTally) -> Vec<(&Owner, u64)> {
    let mut owners: Vec<_> = tally.owners.iter().map(|(owner, pods)| (owner, *pods)).collect();
    owners.sort_by_key(|(_, pods)| Reverse(*pods));
    owners
}

fn time(us: i64) -> String {
    Timestamp::from_microsecond(us).map(|it| it.to_string()).unwrap_or_default()
}

fn clock(us: i64) -> String {
    time(us).get(11..19).unwrap_or_default().to_owned()
}

/// `15 min`
fn lasted(time: Duration) -> String {
    match time.as_secs() {
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}
