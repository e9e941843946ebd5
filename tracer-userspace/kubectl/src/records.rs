//! The records in a pod's log: splits it into lines while it arrives, and reads the common fields of each record.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Deserialize;

use super::api::Log;
use super::problem::Problem;
use tracer_model::lines::Lines;
use tracer_model::record::{K8s, SCHEMA};

/// The longest line that is read: a verdict with all its evidence has a few KiB.
pub(super) const LINE_MAX: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) records: u64,
    /// Lines that begin like a record but are none.
    pub(super) unreadable: u64,
    pub(super) other_schema: Option<String>,
    /// Times of the first and the last record.
    pub(super) times: Option<(String, String)>,
}

impl Reading {
    /// Reads a line. Gives its head if it is a record of our schema. The same log has diagnostics of the daemon, which do
    /// not begin like an object.
    pub(super) fn take<'a>(&mut self, line: &'a [u8]) -> Option<Head<'a>> {
        if line.first() != Some(&b'{') {
            return None;
        }
        let Ok(head) = serde_json::from_slice::<Head<'a>>(line) else {
            self.unreadable += 1;
            return None;
        };
        if head.schema != SCHEMA {
            self.other_schema.get_or_insert_with(|| head.schema.chars().take(40).collect());
            return None;
        }
        self.records += 1;
        match &mut self.times {
            Some((_, last)) => head.time.as_ref().clone_into(last),
            None => self.times = Some((head.time.to_string(), head.time.to_string())),
        }
        Some(head)
    }

    pub(super) fn newest(&self) -> Option<Timestamp> {
        self.times.as_ref().and_then(|(_, last)| last.parse().ok())
    }

    /// The problem that the log has only records of another schema.
    pub(super) fn problem(&self, log: &str) -> Option<Problem> {
        let schema = self.other_schema.as_ref().filter(|_| self.records == 0)?;
        let name = if schema.is_empty() { "no schema" } else { schema };
        Some(Problem::Found(format!(
            "{log} has records of {name}, and this plugin reads {SCHEMA}: use the version of the DaemonSet"
        )))
    }
}

/// The common fields of records, and the pod, which decides whether the record is read.
#[derive(Deserialize)]
pub(super) struct Head<'a> {
    #[serde(borrow, default)]
    schema: Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) time: Cow<'a, str>,
    #[serde(default)]
    pub(super) seq: u64,
    pub(super) k8s: Option<K8s>,
}

/// Gives each complete line of the log; one that is too long is skipped. A last line without newline is skipped: it is still being written, or was cut at
/// the limit.
pub(super) async fn each_line(log: &mut Log, bytes: &mut u64, mut each: impl FnMut(&[u8])) -> Result<(), Problem> {
    let mut lines = Lines::new(LINE_MAX);
    while let Some(chunk) = log.next().await? {
        *bytes += chunk.len() as u64;
        lines.feed(&chunk, |line| {
            line.into_iter().for_each(&mut each);
            Ok::<_, Problem>(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_lines_and_other_schemas_are_noticed() {
        let mut reading = Reading::default();
        let record = br#"{"schema":"tracer/1","type":"loss","time":"2026-01-02T03:04:05Z","seq":1}"#;
        for line in [&b"tracer: warning: x"[..], b"{\"cut", br#"{"schema":"tracer/9","type":"x","time":"t"}"#] {
            assert!(reading.take(line).is_none());
        }
        assert!(reading.problem("the log").is_some_and(|it| it.to_string().contains("tracer/9")));
        assert!(reading.take(record).is_some_and(|head| head.kind == "loss"));
        assert_eq!((reading.records, reading.unreadable), (1, 1));
        assert!(reading.problem("the log").is_none());
    }
}
