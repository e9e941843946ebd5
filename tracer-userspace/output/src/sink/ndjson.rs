//! Records as NDJSON: one object a line, keys in the order of the contract.

use serde::Serialize;

use tracer_model::record::{
    AttemptBody, Body, FindingBody, LossBody, NodeBody, Record, StartBody, StopBody, VerdictBody,
};

/// A record with its keys in the order of the contract: the common fields, then the fields of its type.
#[derive(Serialize)]
struct Line<'a> {
    schema: &'a str,
    r#type: &'static str,
    time: &'a str,
    time_boot_ns: u64,
    seq: u64,
    node_name: &'a str,
    #[serde(flatten)]
    fields: Fields<'a>,
}

/// The fields of a record's type.
#[derive(Serialize)]
#[serde(untagged)]
enum Fields<'a> {
    Start(&'a StartBody),
    Stop(&'a StopBody),
    Verdict(&'a VerdictBody),
    Attempt(&'a AttemptBody),
    Node(&'a NodeBody),
    Loss(&'a LossBody),
    Finding(&'a FindingBody),
}

/// One line, its newline included.
pub fn line(record: &Record) -> Vec<u8> {
    // Maps have string keys and numbers are finite: nothing in these types can fail.
    let mut bytes = serde_json::to_vec(&ordered(record)).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

pub(super) fn value(record: &Record) -> serde_json::Value {
    serde_json::to_value(ordered(record)).unwrap_or_default()
}

/// The record with its keys in order.
fn ordered(record: &Record) -> Line<'_> {
    let (r#type, fields) = match &record.body {
        Body::Start(body) => ("start", Fields::Start(body)),
        Body::Stop(body) => ("stop", Fields::Stop(body)),
        Body::Verdict(body) => ("verdict", Fields::Verdict(body)),
        Body::Attempt(body) => ("attempt", Fields::Attempt(body)),
        Body::Node(body) => ("node", Fields::Node(body)),
        Body::Loss(body) => ("loss", Fields::Loss(body)),
        Body::Finding(body) => ("finding", Fields::Finding(body)),
    };
    Line {
        schema: &record.schema,
        r#type,
        time: &record.time,
        time_boot_ns: record.time_boot_ns,
        seq: record.seq,
        node_name: &record.node_name,
        fields,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::verdict;
    use tracer_model::record::Cause;

    fn record(body: Body) -> Record {
        Record { schema: "tracer/1".into(), body, time: "t".into(), time_boot_ns: 1, seq: 2, node_name: "n".into() }
    }

    #[test]
    fn keys_stand_in_the_contracts_order() {
        let text = String::from_utf8(line(&record(verdict(Cause::SlowResponse)))).unwrap();
        let start = r#"{"schema":"tracer/1","type":"verdict","time":"t","time_boot_ns":1,"seq":2,"node_name":"n","subject":"probe","attempt_id":"1","severity":"error","scope":"application","verdict":{"cause":"slow_response","outcome":"failure","confidence":"proven","summary":"#;
        assert!(text.starts_with(start), "{text}");
        assert!(text.ends_with("}\n"));
    }

    #[test]
    fn a_printed_record_is_read_as_the_same_record() {
        let bodies = [
            verdict(Cause::ConnectionRefused),
            Body::Stop(StopBody { reason: "signal".into(), ..StopBody::default() }),
            Body::Loss(LossBody { where_: "ring".into(), count: 1, from_boot_ns: 2, to_boot_ns: 3 }),
        ];
        for body in bodies {
            let record = record(body);
            assert_eq!(serde_json::from_slice::<Record>(&line(&record)).unwrap(), record);
            let ours: serde_json::Value = serde_json::from_slice(&line(&record)).unwrap();
            assert_eq!(ours, serde_json::to_value(&record).unwrap());
        }
    }
}
