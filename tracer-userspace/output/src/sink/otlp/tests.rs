use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use flate2::read::GzDecoder;
use serde_json::json;

use super::message::{AnyValue, PartialSuccess, Request, Response, Value};
use super::*;
use crate::sink::tests::{recorded, verdict};
use tracer_model::record::{Body, Cause, LossBody};

fn loss(seq: u64) -> Record {
    recorded(seq, Body::Loss(LossBody { where_: "ring".into(), count: 3, from_boot_ns: 1, to_boot_ns: 2 }))
}

fn started(config: OtlpConfig) -> OtlpSink {
    OtlpSink::start(config, &Background::new("otlp", &tracer_sources::Supervisor::new().0)).unwrap()
}

/// A receiver. It gives these answers in turn, each on its own connection, and keeps the requests.
struct Receiver {
    url: String,
    thread: JoinHandle<Vec<(String, Request)>>,
}

impl Receiver {
    fn start(answers: Vec<&'static [u8]>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/logs", listener.local_addr().unwrap());
        let answer = move |answer| {
            let mut stream = listener.accept().unwrap().0;
            let request = read(&mut stream);
            stream.write_all(answer).unwrap();
            request
        };
        Self { url, thread: thread::spawn(move || answers.into_iter().map(answer).collect()) }
    }

    fn sink(&self, gzip: bool) -> OtlpSink {
        let headers = vec![("x-scope".parse().unwrap(), "shop".parse().unwrap())];
        started(OtlpConfig { endpoint: self.url.parse().unwrap(), headers, gzip })
    }

    /// Head and message of each request.
    fn requests(self) -> Vec<(String, Request)> {
        self.thread.join().unwrap()
    }
}

/// A request: its head in lower case, its message.
fn read(stream: &mut TcpStream) -> (String, Request) {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.extend(byte);
    }
    let head = String::from_utf8(bytes).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    if head.contains("content-encoding: gzip") {
        let packed = std::mem::take(&mut body);
        GzDecoder::new(packed.as_slice()).read_to_end(&mut body).unwrap();
    }
    (head, Request::decode(body.as_slice()).unwrap())
}

/// Which records are in a request, by their `seq`.
fn seqs(request: &Request) -> Vec<i64> {
    let records = &request.resource_logs[0].scope_logs[0].log_records;
    let seq = |attributes: &[message::KeyValue]| {
        let value = attributes.iter().find(|attribute| attribute.key == "tracer.seq").and_then(|it| it.value.clone());
        match value.and_then(|value| value.value) {
            Some(Value::IntValue(seq)) => seq,
            other => panic!("{other:?}"),
        }
    };
    records.iter().map(|record| seq(&record.attributes)).collect()
}

const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 0\r\nconnection: close\r\n\r\n";
const REFUSED: &[u8] = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const NONSENSE: &[u8] = b"SSH-2.0-OpenSSH_9.2\r\n";

#[test]
fn a_record_has_the_names_of_the_conventions() {
    let line: serde_json::Value = serde_json::from_slice(&line(&recorded(7, verdict(Cause::SlowResponse)))).unwrap();
    let logs = &line["resourceLogs"][0];
    let log = &logs["scopeLogs"][0]["logRecords"][0];
    let attribute = |of: &serde_json::Value, key: &str| {
        let all = of["attributes"].as_array().unwrap();
        all.iter().find(|it| it["key"] == key).map_or(json!(null), |it| it["value"].clone())
    };
    assert_eq!(attribute(&logs["resource"], "k8s.node.name"), json!({ "stringValue": "n1" }));
    assert_eq!(log["timeUnixNano"], "1767323045678901234");
    assert_eq!((&log["severityNumber"], &log["severityText"]), (&json!(17), &json!("ERROR")));
    assert_eq!(log["eventName"], "tracer.verdict");
    assert_eq!(attribute(log, "tracer.verdict.cause"), json!({ "stringValue": "slow_response" }));
    assert_eq!(attribute(log, "tracer.seq"), json!({ "intValue": "7" }));
    assert_eq!(attribute(log, "network.transport"), json!({ "stringValue": "tcp" }));
    assert_ne!(attribute(log, "destination.address"), json!(null));
    assert_ne!(log["body"]["stringValue"], json!(null));
    let keys: Vec<_> = log["attributes"].as_array().unwrap().iter().map(|it| it["key"].as_str().unwrap()).collect();
    assert_eq!(keys.len(), keys.iter().collect::<BTreeSet<_>>().len(), "each once: {keys:?}");
}

#[test]
fn json_and_protobuf_have_the_same_values() {
    let json = json!({ "a": [1, 2.5, true, "x"], "b": { "c": null } });
    let value = AnyValue::from(json);
    assert_eq!(AnyValue::decode(value.encode_to_vec().as_slice()).unwrap(), value);
    let expected = json!({ "kvlistValue": { "values": [
        { "key": "a", "value": { "arrayValue": { "values": [
            { "intValue": "1" }, { "doubleValue": 2.5 }, { "boolValue": true }, { "stringValue": "x" }] } } },
        { "key": "b", "value": { "kvlistValue": { "values": [{ "key": "c", "value": {} }] } } },
    ] } });
    assert_eq!(serde_json::to_value(&value).unwrap(), expected);
}

#[test]
fn records_arrive_in_order_with_their_headers() {
    let receiver = Receiver::start(vec![TAKEN]);
    let mut sink = receiver.sink(true);
    (0..100).for_each(|seq| sink.take_record(&loss(seq)));
    assert!(sink.finish());
    let requests = receiver.requests();
    let (head, request) = &requests[0];
    assert!(head.starts_with("post /v1/logs ") && head.contains("x-scope: shop"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    assert_eq!(seqs(request), (0..100).collect::<Vec<_>>());
}

#[test]
fn records_that_no_receiver_takes_are_counted() {
    let partial_success = Some(PartialSuccess { rejected_log_records: 2, error_message: "too old".into() });
    let body = Response { partial_success }.encode_to_vec();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let partial = &*[head.as_bytes(), &body].concat().leak();
    for (case, answers, lost) in [
        ("sent again to a busy receiver, or after an unreadable answer", vec![BUSY, NONSENSE, TAKEN], 0),
        ("refused for good: not tried again", vec![REFUSED], 3),
        ("two are rejected", vec![partial], 2),
    ] {
        let requests = answers.len();
        let receiver = Receiver::start(answers);
        let mut sink = receiver.sink(false);
        (0..3).for_each(|seq| sink.take_record(&loss(seq)));
        assert_eq!((sink.finish(), sink.dropped()), (lost == 0, lost), "{case}");
        let got: Vec<_> = receiver.requests().iter().map(|(_, request)| seqs(request)).collect();
        assert_eq!(got, vec![[0, 1, 2]; requests], "{case}");
    }
}

#[test]
fn a_full_buffer_loses_records_and_counts_them() {
    // Nothing listens on this port: it was closed again.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{closed}/v1/logs").parse().unwrap();
    let mut sink = started(OtlpConfig { endpoint, headers: Vec::new(), gzip: true });
    let long =
        recorded(0, Body::Loss(LossBody { where_: "x".repeat(1 << 20), count: 1, from_boot_ns: 1, to_boot_ns: 2 }));
    (0..10).for_each(|_| sink.take_record(&long));
    assert_eq!(sink.dropped(), 3, "seven fit into 8 MiB");
    assert_eq!(sink.take_dropped(), 0, "a record that says so would be lost, too");
    assert!(!sink.finish());
    assert_eq!(sink.dropped(), 10);
}
