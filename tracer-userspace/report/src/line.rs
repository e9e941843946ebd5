//! The fields that are read from each line, mostly without copies. The others are read only for the verdicts on the page.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use super::faults::Problem;
use tracer_model::record::{
    Body, Cause, Confidence, Culprit, Endpoint, K8s, Outcome, Process, Record, Repeated, SCHEMA,
};
use tracer_terminal::error::json_problem;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodKey {
    pub(crate) node: String,
    /// `namespace/name`, or what else identifies the target.
    pub(crate) name: String,
}

/// A cause, apart for failures and for noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// The attempts succeeded.
    pub(crate) noise: bool,
    pub(crate) cause: Cause,
}

impl Group {
    pub(crate) fn new(cause: Cause, outcome: Outcome) -> Self {
        Self { noise: outcome != Outcome::Failure, cause }
    }
}

pub(super) enum Line<'a> {
    Attempt(Box<Fields<'a>>, i64),
    /// Any other record, and its time in µs.
    Other(Box<Record>, i64),
}

#[derive(Deserialize)]
pub struct Fields<'a> {
    #[serde(borrow, default)]
    schema: Cow<'a, str>,
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    time: Cow<'a, str>,
    #[serde(default)]
    pub seq: u64,
    #[serde(default)]
    pub(super) node_name: String,
    pub verdict: Option<Answer>,
    pub k8s: Option<K8s>,
    pub dst: Option<Endpoint>,
    process: Option<Process>,
    pub culprit: Option<Culprit>,
    /// Of an attempt; absent: it is not known how it ended.
    pub(super) outcome: Option<Outcome>,
    /// Of an attempt.
    pub(super) cause: Option<Cause>,
    /// The verdict that this one replaces.
    pub revises: Option<u64>,
    /// How many verdicts the record stands for.
    pub repeated: Option<Repeated>,
}

/// The fields of a verdict that are counted.
#[derive(Deserialize)]
pub struct Answer {
    pub cause: Cause,
    pub outcome: Outcome,
    pub(super) confidence: Confidence,
    #[serde(default)]
    pub(super) also: Vec<Cause>,
}

impl Answer {
    pub(super) fn group(&self) -> Group {
        Group::new(self.cause, self.outcome)
    }
}

impl Fields<'_> {
    /// The pod of the attempt, as far as it is known.
    pub(super) fn pod(&self) -> PodKey {
        let k8s = self.k8s.as_ref();
        let named = k8s.and_then(|k8s| {
            let namespace = k8s.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
            let uid = || k8s.pod_uid.as_ref().map(|uid| format!("pod {uid}"));
            k8s.pod_name.as_ref().map(|name| format!("{namespace}{name}")).or_else(uid)
        });
        let target = || self.dst.map(|dst| dst.addr.to_string());
        let client = || self.process.as_ref().map(|process| format!("connections of {}", process.comm));
        let name = named.or_else(target).or_else(client).unwrap_or_else(|| "unknown".into());
        PodKey { node: self.node_name.clone(), name }
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Line<'_>, Problem> {
    let fields: Fields<'_> = serde_json::from_slice(bytes).map_err(|error| problem(bytes, &error))?;
    if fields.schema != SCHEMA {
        return Err(Problem::Line(wrong_schema(&fields.schema)));
    }
    let us = microseconds(&fields.time).ok_or_else(|| Problem::Line(format!("`{}` is no time", fields.time)))?;
    match (fields.kind.as_ref(), &fields.verdict, fields.dst) {
        ("verdict", Some(_), _) | ("attempt", _, Some(_)) => Ok(Line::Attempt(Box::new(fields), us)),
        ("verdict" | "attempt", ..) => {
            Err(Problem::Line(format!("a record `{}` without what it is about", fields.kind)))
        }
        _ => whole(bytes).map(|record| Line::Other(Box::new(record), us)),
    }
}

/// What a record of any schema has.
#[derive(Deserialize)]
struct Head {
    schema: String,
    #[serde(rename = "type", default)]
    kind: String,
}

pub(super) fn schema(bytes: &[u8]) -> Option<String> {
    serde_json::from_slice::<Head>(bytes).ok().map(|head| cut(&head.schema))
}

/// The note about a record of our schema with a type that only a newer tracer knows. It is no fault of the file.
fn newer(bytes: &[u8]) -> Option<String> {
    let Head { schema, kind } = serde_json::from_slice(bytes).ok()?;
    let is_newer = schema == SCHEMA && !kind.is_empty() && !Body::TYPES.contains(&kind.as_str());
    is_newer.then(|| format!("a record of type `{}`, which this tracer does not know: skipped", cut(&kind)))
}

pub(super) fn whole(bytes: &[u8]) -> Result<Record, Problem> {
    serde_json::from_slice(bytes).map_err(|error| problem(bytes, &error))
}

/// When the record of this line was made.
pub(super) fn time_of(bytes: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Time<'a> {
        #[serde(borrow)]
        time: Cow<'a, str>,
    }
    serde_json::from_slice::<Time<'_>>(bytes).ok().and_then(|line| microseconds(&line.time))
}

fn microseconds(time: &str) -> Option<i64> {
    time.parse::<Timestamp>().ok().map(Timestamp::as_microsecond)
}

/// The problem with a JSON object that is no record of our schema.
fn wrong_schema(schema: &str) -> String {
    if schema.is_empty() {
        return format!("not a record of schema {SCHEMA}");
    }
    format!("a record of schema {}: this tracer reads {SCHEMA}", cut(schema))
}

fn problem(bytes: &[u8], error: &serde_json::Error) -> Problem {
    if let Some(note) = newer(bytes) {
        return Problem::Note(note);
    }
    Problem::Line(match bytes.trim_ascii_start().first() {
        Some(b'{') => cut(&format!("not a record: {}", json_problem(error))),
        _ => "not a record: not JSON".into(),
    })
}

/// Limits the length of a message.
fn cut(text: &str) -> String {
    const MAX: usize = 120;
    if text.chars().count() <= MAX { text.to_owned() } else { text.chars().take(MAX).chain(['…']).collect() }
}
