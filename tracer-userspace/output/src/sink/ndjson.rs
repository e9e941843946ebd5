//! Records as NDJSON: one object a line, keys in the order of the contract.

use serde::Serialize;
use serde_json::Value;

use tracer_model::record::Record;

/// One line, its newline included.
pub fn line(record: &Record) -> Vec<u8> {
    line_of(&value(record))
}

/// A value as one line. Maps have string keys and numbers are finite, so nothing in our types can fail.
pub(crate) fn line_of(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// The record with its keys in the order of the contract: the common fields, then the fields of its type.
pub(super) fn value(record: &Record) -> Value {
    let mut value = serde_json::to_value(record).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        // serde puts the fields of the body where the type has it, after `schema` and before these.
        for (at, name) in (2..).zip(["time", "time_boot_ns", "seq", "node_name"]) {
            if let Some(field) = fields.shift_remove(name) {
                fields.shift_insert(at, name.to_owned(), field);
            }
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::{recorded, verdict};
    use tracer_model::record::Cause;

    #[test]
    fn keys_stand_in_the_contracts_order() {
        let text = String::from_utf8(line(&recorded(2, verdict(Cause::SlowResponse)))).unwrap();
        let start = r#"{"schema":"tracer/1","type":"verdict","time":"2026-01-02T03:04:05.678901234Z","time_boot_ns":1000000000,"seq":2,"node_name":"n1","subject":"probe","attempt_id":"1","severity":"error","scope":"application","verdict":{"cause":"slow_response","outcome":"failure","confidence":"proven","summary":"#;
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("}\n"));
    }
}
