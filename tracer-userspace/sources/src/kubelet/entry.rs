//! An entry of the kubelet's log in one of its two formats: klog's text, or JSON (`logging.format: json`).
//!
//! JSON is zap's, set up by component-base (`logs/json`): `{"ts":1795256193316.8631,"caller":"prober/prober.go:107",
//! "msg":"Probe failed","v":1,"pod":{"name":"…","namespace":"…"},…}`; `ts` is milliseconds since 1970. A message
//! that klog formats (`Infof`) is all in `msg`, with a newline at its end.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use super::fields::{field, header, is_at_message, unquoted};

/// The start of every JSON entry: the encoder writes neither a level nor another key before the time.
const JSON: &str = "{\"ts\":";

#[derive(Debug)]
pub(super) struct LogEntry<'a> {
    pub(super) time: WrittenTime,
    /// The process that wrote it; absent in JSON.
    pub(super) pid: Option<u32>,
    /// The message without its quotes.
    pub(super) message: Cow<'a, str>,
    fields: Fields<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenTime {
    /// The time within a quarter of an hour, which is the same in every time zone.
    InQuarter(Duration),
    /// Wall clock, nanoseconds.
    Wall(u64),
}

#[derive(Debug)]
enum Fields<'a> {
    /// The `key=value` pairs after the message.
    Text(&'a str),
    Json(Map<String, Value>),
}

impl<'a> LogEntry<'a> {
    /// Parses a line. A log daemon may have written a prefix.
    pub(super) fn of(line: &'a str) -> Option<Self> {
        // klog indents further lines of a value (`output=<`). A pod can have written them, so they are never an entry.
        if line.starts_with(char::is_whitespace) {
            return None;
        }
        match line.split_once(JSON) {
            // klog's header ends with a bracket and a space: JSON after that is only quoted by the kubelet.
            Some((before, _)) if !before.contains("] ") && is_at_message(before) => json(&line[before.len()..]),
            _ => text(line),
        }
    }

    /// The value of a key; an object becomes `namespace/name`.
    pub(super) fn field(&self, key: &str) -> Option<String> {
        match &self.fields {
            Fields::Text(pairs) => field(pairs, key),
            Fields::Json(fields) => value_of(fields.get(key)?),
        }
    }

    /// The value of a key is in quotes, in klog's text. In JSON all are.
    pub(super) fn is_quoted(&self, key: &str) -> bool {
        matches!(self.fields, Fields::Text(pairs) if pairs.contains(&format!("{key}=\"")))
    }
}

fn text(line: &str) -> Option<LogEntry<'_>> {
    let (header, text) = header(line)?;
    let (message, pairs) = match text.strip_prefix('"').map(unquoted) {
        Some((message, pairs)) => (message.into(), pairs),
        None => (Cow::Borrowed(text), ""),
    };
    Some(LogEntry {
        time: WrittenTime::InQuarter(header.in_quarter),
        pid: header.pid,
        message,
        fields: Fields::Text(pairs),
    })
}

fn json(line: &str) -> Option<LogEntry<'static>> {
    let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
    let seconds = fields.get("ts")?.as_f64()? / 1000.0;
    let wall = Duration::try_from_secs_f64(seconds).ok()?.as_nanos();
    let message = fields.get("msg")?.as_str()?.trim_end().to_owned().into();
    Some(LogEntry {
        time: WrittenTime::Wall(u64::try_from(wall).ok()?),
        pid: None,
        message,
        fields: Fields::Json(fields),
    })
}

fn value_of(value: &Value) -> Option<String> {
    let of_object = |key: &str| value.get(key).and_then(Value::as_str);
    match (of_object("namespace"), of_object("name")) {
        (Some(namespace), Some(name)) => Some(format!("{namespace}/{name}")),
        (None, name) => name.or_else(|| value.as_str()).map(str::to_owned),
        (Some(_), None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_text_and_in_json() {
        let text = r#"I1120 15:50:38.197403   13560 a.go:1] "Some words" pod="shop/cart" count=2 err="say \"no\"""#;
        let json = r#"{"ts":1795256193316.8631,"caller":"a/a.go:1","msg":"Some words","v":1,"pod":{"name":"cart","namespace":"shop"},"count":2,"err":"say \"no\""}"#;
        for line in [text, json] {
            let entry = LogEntry::of(line).unwrap();
            assert_eq!(entry.message, "Some words");
            assert_eq!(entry.field("pod").as_deref(), Some("shop/cart"));
            assert_eq!(entry.field("err").as_deref(), Some("say \"no\""));
            assert_eq!(entry.field("node"), None);
        }
        let node = r#"{"ts":1.5,"msg":"m\n","node":{"name":"n1"},"pod":"a/b","of":{"namespace":"x"}}"#;
        let entry = LogEntry::of(node).unwrap();
        assert_eq!((entry.time, entry.message.as_ref()), (WrittenTime::Wall(1_500_000), "m"));
        assert_eq!((entry.field("node").as_deref(), entry.field("pod").as_deref()), (Some("n1"), Some("a/b")));
        assert_eq!(entry.field("of"), None);
    }

    #[test]
    fn the_time_of_json_is_exact_to_the_microsecond() {
        let entry = LogEntry::of(r#"{"ts":1795256193316.8631,"msg":""}"#).unwrap();
        let WrittenTime::Wall(wall) = entry.time else { panic!("{entry:?}") };
        assert!(wall.abs_diff(1_795_256_193_316_863_100) < 1_000, "{wall}");
    }

    #[test]
    fn json_is_found_after_the_prefix_of_a_log_daemon() {
        let json = r#"{"ts":1.5,"msg":"m"}"#;
        for before in ["", "Nov 20 15:50:38 n1 kubelet[13560]: "] {
            assert_eq!(LogEntry::of(&format!("{before}{json}")).unwrap().message, "m");
        }
    }

    #[test]
    fn output_of_a_pod_that_looks_like_an_entry_is_none() {
        let json = r#"{"ts":1.5,"msg":"Probe failed"}"#;
        let plain = format!("I1120 15:50:38.197403 1 prober.go:117] Readiness probe for \"a_b(c):d\" failed: {json}");
        assert!(LogEntry::of(&plain).unwrap().message.starts_with("Readiness probe"));
        assert!(LogEntry::of(&format!("\t{json}")).is_none(), "a line of `output=<`");
        assert!(LogEntry::of("\tI1120 15:50:38.197403 1 prober.go:117] \"Probe failed\"").is_none());
        for escaped in ["#011", "#011 ", "\t"] {
            let behind = format!("Nov 20 15:50:38 n1 kubelet[1]: {escaped}");
            assert!(LogEntry::of(&format!("{behind}{json}")).is_none(), "{escaped}");
            assert!(LogEntry::of(&format!("{behind}I1120 15:50:38.197403 7 p.go:1] \"Probe failed\"")).is_none());
        }
        let within = r#"{"ts":1.5,"msg":"m","output":"I1120 15:50:38.197403 1 p.go:1] x {\"ts\":2,\"msg\":\"n\"}"}"#;
        assert_eq!(LogEntry::of(within).unwrap().message, "m");
        for broken in [r#"{"ts":1.5"#, r#"{"ts":-1,"msg":"m"}"#, r#"{"ts":"1","msg":"m"}"#, r#"{"ts":1e300,"msg":""}"#]
        {
            assert!(LogEntry::of(broken).is_none(), "{broken}");
        }
    }
}
