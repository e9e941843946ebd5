//! The page as text, or as one JSON object.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::clock::skew_text;
use super::tally::{CauseTally, Causes, Owner};
use tracer_model::plural::{counted, duration};
use tracer_model::record::Cause;
use tracer_output::sink::plain::date_and_time;
use tracer_terminal::screen::{Screen, Style};

/// How many culprits, workloads and nodes of a cause are named.
const NAMED: usize = 3;
const NAMED_NODES: usize = 10;

/// Which nodes are on the page.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub(crate) answered: u64,
    pub(crate) without_records: Vec<String>,
    /// Nodes where tracer's pod is not ready, and why: ` (CrashLoopBackOff)`.
    pub(crate) not_ready: Vec<(String, String)>,
    /// Nodes with a missing or incomplete log, and why.
    pub(crate) without: Vec<(String, String)>,
    /// Nodes with a longer log than the limit.
    pub(crate) cut: Vec<String>,
    /// Nodes with a clock that differs, and by how many seconds.
    pub(crate) skewed: Vec<(String, i64)>,
    /// Lines that are no records.
    pub(crate) unreadable: u64,
}

pub(crate) struct Page {
    causes: Vec<(Cause, CauseTally)>,
    answers: Answers,
    since: Duration,
    /// Times are printed with their dates: not all of them are of today.
    has_dates: bool,
}

impl Page {
    pub(crate) fn new(causes: Causes, answers: Answers, since: Duration, now: Timestamp) -> Self {
        let causes = causes.ranked();
        let today = now.to_string();
        let is_today = |us: i64| time(us).get(..10) == today.get(..10);
        let has_dates = !causes.iter().all(|(_, it)| is_today(it.first_us()) && is_today(it.last_us));
        Self { causes, answers, since, has_dates }
    }

    /// Whether the complete log of every requested node is on the page.
    pub(crate) fn is_whole(&self) -> bool {
        let Answers { without, cut, unreadable, .. } = &self.answers;
        without.is_empty() && cut.is_empty() && *unreadable == 0
    }

    /// Warnings about what is missing on the page, or makes it less sure.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let Answers { without, without_records, not_ready, cut, skewed, unreadable, .. } = &self.answers;
        let count = |nodes: usize| counted(nodes as u64, "node");
        let warnings = [
            named(without.iter().map(|(node, why)| format!("{node}: {why}")), "; ")
                .map(|named| format!("{} gave no answer: {named}", count(without.len()))),
            named(without_records.iter().cloned(), ", ").map(|named| {
                let why = "nothing happened there, or tracer writes to a file (--output-file)";
                format!("no record in the log of {}: {named}; {why}", count(without_records.len()))
            }),
            named(not_ready.iter().map(|(node, why)| format!("{node}{why}")), ", ").map(|named| {
                let nodes = count(not_ready.len());
                format!("tracer is not ready on {nodes}, and failures there may be missing: {named}")
            }),
            named(cut.iter().cloned(), ", ").map(|named| {
                format!("the newest records of {named} are missing: shorten --since or raise --limit-bytes")
            }),
            named(skewed.iter().map(|(node, s)| skew_text(node, *s)), ", ")
                .map(|named| format!("clocks differ, so the order of nodes is not sure: {named}")),
            (*unreadable > 0).then(|| format!("{} could not be read", counted(*unreadable, "line"))),
        ];
        warnings.into_iter().flatten().collect()
    }

    pub(crate) fn text(&self, screen: Screen) -> String {
        let mut out = String::new();
        let (answered, without) = (self.answers.answered, self.answers.without.len() as u64);
        let of_all = if without > 0 { format!("{answered} of ") } else { String::new() };
        let nodes = counted(answered + without, "node");
        let head = format!("{of_all}{nodes} answered; failures of the last {}, times in UTC", duration(self.since));
        screen.head(&mut out, &head);
        if self.causes.is_empty() {
            screen.head(&mut out, &self.without_failure(screen));
        }
        for (cause, tally) in &self.causes {
            block(&mut out, *cause, tally, self.has_dates, screen);
        }
        out
    }

    /// The line where nothing is counted. It is good news only of complete logs that have records.
    fn without_failure(&self, screen: Screen) -> String {
        let silent = self.answers.without_records.len() as u64;
        let style = if self.is_whole() && self.answers.not_ready.is_empty() { Style::Good } else { Style::Mild };
        match (self.answers.answered - silent, silent) {
            (0, _) => screen.paint(Style::Mild, "no record in these logs"),
            (_, 0) => screen.paint(style, "no failure in these logs"),
            (read, _) => {
                let others = counted(silent, "other node");
                let text = format!("no failure on {}, and no record of {others}", counted(read, "node"));
                screen.paint(style, &text)
            }
        }
    }

    /// For scripts: one object, one line.
    pub(crate) fn json(&self) -> String {
        let Answers { answered, without, without_records, not_ready, cut, skewed, .. } = &self.answers;
        let not_ready: Vec<_> = not_ready.iter().map(|(node, _)| node).collect();
        let without = without.iter().map(|(node, problem)| json!({"node_name": node, "problem": problem}));
        let skewed = skewed.iter().map(|(node, s)| json!({"node_name": node, "ahead_at_least_s": s}));
        let json = json!({
            "schema": "tracer-top/1",
            "since_s": self.since.as_secs(),
            "nodes": {
                "answered": answered,
                "without_answer": without.collect::<Vec<_>>(),
                "without_records": without_records,
                "not_ready": not_ready,
                "log_cut": cut,
                "clock_differs": skewed.collect::<Vec<_>>(),
            },
            "causes": self.causes.iter().map(|(cause, tally)| json_of(*cause, tally)).collect::<Vec<_>>(),
        });
        format!("{json}\n")
    }
}

/// The first nodes of a list, and how many others there are; absent if the list is empty.
fn named(all: impl ExactSizeIterator<Item = String>, between: &str) -> Option<String> {
    let more = all.len().saturating_sub(NAMED_NODES);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Some(all.take(NAMED_NODES).collect::<Vec<_>>().join(between) + &more).filter(|named| !named.is_empty())
}

fn json_of(cause: Cause, tally: &CauseTally) -> Value {
    let first_nodes = tally.first_nodes(NAMED_NODES).into_iter();
    let culprits = tally.culprits.iter().map(|(culprit, it)| {
        json!({"culprit": culprit, "nodes": it.count, "first_time": time(it.first_us), "first_node": it.first})
    });
    let workloads = owners(tally)
        .into_iter()
        .map(|((namespace, it), pods)| json!({"namespace": namespace, "kind": it.kind, "name": it.name, "pods": pods}));
    json!({
        "cause": cause,
        "pods": tally.pods,
        "nodes": tally.nodes.len(),
        "verdicts": tally.verdicts,
        "first_time": time(tally.first_us()),
        "last_time": time(tally.last_us),
        "first_nodes": first_nodes.map(|(node, us)| json!({"node_name": node, "time": time(us)})).collect::<Vec<_>>(),
        "culprits": culprits.collect::<Vec<_>>(),
        "workloads": workloads.collect::<Vec<_>>(),
    })
}

fn block(out: &mut String, cause: Cause, tally: &CauseTally, has_dates: bool, screen: Screen) {
    let clock = |us| clock(us, has_dates);
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
        let (nodes, since) = (counted(it.count, "node"), clock(it.first_us));
        screen.row(out, "culprit", &format!("{culprit}; the same on {nodes} since {since}, first {}", it.first));
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
    screen.row(out, "explain", &format!("kubectl tracer explain {}", cause.name()));
}

/// The workloads, those with most pods first.
fn owners(tally: &CauseTally) -> Vec<(&Owner, u64)> {
    let mut owners: Vec<_> = tally.owners.iter().map(|(owner, pods)| (owner, *pods)).collect();
    owners.sort_by_key(|(_, pods)| Reverse(*pods));
    owners
}

fn time(us: i64) -> String {
    Timestamp::from_microsecond(us).map(|it| it.to_string()).unwrap_or_default()
}

fn clock(us: i64, has_date: bool) -> String {
    let time = date_and_time(&time(us));
    if has_date { time } else { time.get(11..).unwrap_or_default().to_owned() }
}
