use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::properties::fixtures::tales;
use crate::record::{Body, Cause, LossBody, Record, SCHEMA, StopBody};
use crate::sink::tests::verdict;
use crate::testing::decide;

const FORMATS: [(Format, &str); 2] = [(Format::Otel, "otel"), (Format::Ecs, "ecs")];

fn record(body: Body) -> Record {
    Record {
        schema: SCHEMA.into(),
        body,
        time: "2026-01-02T03:04:05.000000006Z".into(),
        time_boot_ns: 1,
        seq: 2,
        node_name: "n1".into(),
    }
}

/// A verdict with every field that has another name in some format.
fn full() -> Record {
    let Body::Verdict(mut body) = verdict(Cause::ConnectionRefused) else { unreachable!() };
    body.src = Some("10.0.0.1:40000".parse::<std::net::SocketAddr>().unwrap().into());
    if let Some(k8s) = &mut body.k8s {
        k8s.pod_uid = Some("0e3c".into());
    }
    record(Body::Verdict(body))
}

/// The verdicts of every fixture: what real runs print.
fn real() -> Vec<Record> {
    let decisions = tales().iter().flat_map(|tale| decide(&tale.observations));
    decisions.map(|decision| decision.body).filter(|body| matches!(body, Body::Verdict(_))).map(record).collect()
}

fn others() -> Vec<Record> {
    let stop = StopBody { reason: "signal".into(), ..StopBody::default() };
    let loss = LossBody { where_: "ring".into(), count: 1, from_boot_ns: 2, to_boot_ns: 3 };
    vec![record(Body::Stop(stop)), record(Body::Loss(loss))]
}

/// Every value that is no object, with how often it is there.
fn leaves(value: &Value, into: &mut BTreeMap<String, i64>, sign: i64) {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields.values().for_each(|inner| leaves(inner, into, sign)),
        other => *into.entry(other.to_string()).or_default() += sign,
    }
}

fn shaped(record: &Record, format: Format) -> Value {
    let line = line(record, format);
    assert!(line.ends_with(b"}\n"));
    serde_json::from_slice(&line).unwrap()
}

#[test]
fn no_value_is_lost_and_none_is_made_but_those_that_are_added() {
    let real = real();
    assert!(real.len() > 20, "{} records in the fixtures", real.len());
    for (format, name) in FORMATS {
        for record in real.iter().cloned().chain(others()).chain([full()]) {
            let ours = ndjson::value(&record);
            let mut added = Value::Object(Map::new());
            (format.shape().unwrap().add)(&ours, &mut added);
            let mut balance = BTreeMap::new();
            leaves(&shaped(&record, format), &mut balance, 1);
            leaves(&ours, &mut balance, -1);
            if added.as_object().is_some_and(|fields| !fields.is_empty()) {
                leaves(&added, &mut balance, -1);
            }
            balance.retain(|_, n| *n != 0);
            assert_eq!(balance, BTreeMap::new(), "{name}: {ours}");
        }
    }
}

#[test]
fn every_row_moves_a_field_that_records_have() {
    // A `node` record is the one whose summary is not inside a verdict.
    let node = json!({"summary": "lo went down"});
    for (format, name) in FORMATS {
        for row in format.shape().unwrap().rows {
            let mut all = [ndjson::value(&full()), node.clone()];
            let found = all.iter_mut().find_map(|record| take(record, row.from));
            assert!(found.is_some(), "{name}: no record has {}", row.from);
        }
    }
}

#[test]
fn every_row_is_in_the_docs() {
    let docs = include_str!("../../../../docs/formats.md");
    for (format, name) in FORMATS {
        let section = docs.split("\n## ").find(|section| section.contains(&format!("`--format {name}`"))).unwrap();
        let rows = format.shape().unwrap().rows;
        for row in rows {
            let line = format!("| `{}` | `{}` |", row.from, row.to.replace('/', "."));
            assert!(section.contains(&line), "{name}: {line}");
        }
        let documented = section.lines().filter(|line| line.starts_with("| `")).count();
        assert!(documented >= rows.len(), "{name}: rows that the table does not have");
    }
}

#[test]
fn otel_names_are_the_conventions() {
    let shaped = shaped(&full(), Format::Otel);
    assert_eq!(shaped["Timestamp"], "2026-01-02T03:04:05.000000006Z");
    assert_eq!(shaped["EventName"], "verdict");
    assert_eq!(shaped["Body"], "nobody listens on 10.0.0.9:80");
    assert_eq!(shaped["Resource"], json!({"k8s.node.name": "n1"}));
    let attributes = &shaped["Attributes"];
    assert_eq!(attributes["k8s.pod.name"], "cart");
    assert_eq!(attributes["source.port"], 40000);
    assert_eq!(attributes["process.executable.name"], "kubelet");
    assert_eq!(attributes["tracer"]["verdict"]["cause"], "connection_refused");
    assert_eq!(attributes["tracer"]["seq"], 2);
    assert!(attributes["tracer"].get("k8s").is_none() && attributes["tracer"].get("process").is_none());
}

#[test]
fn ecs_names_are_the_schema_s() {
    let shaped = shaped(&full(), Format::Ecs);
    assert_eq!(shaped["@timestamp"], "2026-01-02T03:04:05.000000006Z");
    let event = json!({"kind": "event", "outcome": "failure", "action": "verdict", "sequence": 2, "reason": "connection_refused"});
    assert_eq!(shaped["event"], event);
    let pod =
        json!({"type": "kubernetes", "namespace": "shop", "resource": {"type": "pod", "name": "cart", "id": "0e3c"}});
    assert_eq!(shaped["orchestrator"], pod);
    assert_eq!(shaped["source"], json!({"ip": "10.0.0.1", "port": 40000}));
    assert_eq!(shaped["tracer"]["verdict"]["outcome"], "failure");
    let loss = super::tests::shaped(&others()[1], Format::Ecs);
    assert!(loss["event"].get("outcome").is_none() && loss.get("orchestrator").is_none());
    assert_eq!(loss["tracer"]["where"], "ring");
}

/// A probe that was not made has not succeeded.
#[test]
fn ecs_tells_what_the_kubelet_ignores_from_a_success() {
    let outcome = |result: &str| {
        let noise = json!({"type": "verdict", "verdict": {"outcome": "noise"}, "kubelet": {"result": result}});
        super::ecs::outcome(&noise)
    };
    assert_eq!((outcome("error"), outcome("failure")), (Some("unknown"), Some("success")));
}
