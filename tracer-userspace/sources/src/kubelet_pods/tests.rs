//! The pods of a kubelet's JSON as protobuf, made with protoc's Python from the published definitions, and a gRPC
//! server.

use std::convert::Infallible;

use http::{HeaderName, HeaderValue, Response};
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use tokio::net::UnixListener;

use super::*;
use crate::testing::Scratch;
use tracer_model::event::{Container, ProbeProtocol};

const LIST: &[u8] = include_bytes!("../../../testdata/kubelet-pods.pb");
const JSON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/kubelet-pods.json");

#[test]
fn the_list_equals_the_json_of_the_kubelet() {
    let pods = pods_of(Bytes::from_static(LIST)).expect("a list");
    assert_eq!(pods, files::read_pods(Path::new(JSON)).expect("a file"));
}

/// A field of protobuf with this number and content.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len().try_into().expect("short")], bytes].concat()
}

/// The protocol of the only probe, if its handler has these fields.
fn speaks(handler: u8, fields: &[u8]) -> Option<ProbeProtocol> {
    let probe = field(1, &field(handler, fields));
    let container = field(10, &probe);
    let pod = field(2, &field(2, &container));
    pods_of(Bytes::from(field(1, &pod))).expect("a list")[0].containers[0].probes[0].speaks
}

#[test]
fn a_handler_with_a_field_of_a_later_version_may_speak_any_protocol() {
    const HTTP: u8 = 2;
    const GRPC: u8 = 4;
    let number = [0x08, 80];
    let port = field(2, &[0x08, 0, 0x10, 80]);
    let header = field(5, &[field(1, b"X-Rig"), field(2, b"yes")].concat());
    assert_eq!(speaks(HTTP, &[port.clone(), header, field(3, b""), field(4, b"")].concat()), None);
    assert_eq!(speaks(HTTP, &[port.clone(), field(6, b"HTTP2")].concat()), Some(ProbeProtocol::Http2));
    assert_eq!(speaks(HTTP, &[port, field(7, b"new")].concat()), Some(ProbeProtocol::Unknown));
    assert_eq!(speaks(GRPC, &[&number[..], &field(2, b"liveness")].concat()), None);
    assert_eq!(speaks(GRPC, &[&number[..], &field(3, b"TLS")].concat()), Some(ProbeProtocol::Tls));
    assert_eq!(speaks(GRPC, &[&number[..], &field(4, b"new")].concat()), Some(ProbeProtocol::Unknown));
}

#[test]
fn restart_rules_of_a_container_are_read() {
    let never_restarted = |rules: &[u8]| {
        let container = field(2, &[&field(1, b"app"), rules].concat());
        let pod = field(2, &[container, field(3, b"Never")].concat());
        pods_of(Bytes::from(field(1, &pod))).expect("a list")[0].containers[0].never_restarted
    };
    // `restart_policy_rules` is field 25: its key takes two bytes.
    let rules = [vec![0xCA, 0x01, 9], field(1, b"Restart")].concat();
    assert!(never_restarted(&[]) && !never_restarted(&rules));
}

type HeaderPair = (&'static str, &'static str);

/// The result of an answer with these headers and trailers.
async fn answered(head: &'static [HeaderPair], data: Vec<u8>, behind: &'static [HeaderPair]) -> Result<Bytes, Problem> {
    let headers = |all: &[HeaderPair]| -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    };
    let scratch = Scratch::new();
    let path = scratch.path("kubelet.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let answer = async {
        let (socket, _) = listener.accept().await.expect("a client");
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            assert_eq!(request.uri().path(), "/v1alpha1.Pods/ListPods");
            let trailers = Ok::<_, Infallible>(headers(behind));
            let body = Full::new(Bytes::from(data.clone())).with_trailers(async { Some(trailers) });
            let mut answer = Response::new(body);
            *answer.headers_mut() = headers(head);
            async { Ok::<_, Infallible>(answer) }
        });
        server::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await
    };
    tokio::select! {
        asked = ask(&path) => asked,
        served = answer => unreachable!("the server ended first: {served:?}"),
    }
}

const OK: &[HeaderPair] = &[("grpc-status", "0")];

/// A message after gRPC's prefix with this length.
fn message(length: u32, bytes: &[u8]) -> Vec<u8> {
    [&[0], &length.to_be_bytes()[..], bytes].concat()
}

#[tokio::test]
async fn the_message_of_an_answer_is_taken() {
    let length = u32::try_from(LIST.len()).expect("short");
    assert_eq!(answered(&[], message(length, LIST), OK).await.expect("a message"), LIST);
    assert_eq!(answered(&[], message(0, b""), OK).await.expect("no pod"), "");
}

#[tokio::test]
async fn an_answer_that_is_none_is_a_problem() {
    let starting = &[("grpc-status", "9"), ("grpc-message", "Kubelet is initializing")];
    for (head, data, behind, problem) in [
        (starting as &[HeaderPair], Vec::new(), &[] as &[HeaderPair], "gRPC status 9: Kubelet is initializing"),
        (&[], message(0, b""), &[("grpc-status", "13")], "gRPC status 13: "),
        (&[], Vec::new(), OK, "its answer cannot be read: no message, or a compressed one"),
        (&[], vec![1, 0, 0, 0, 0], OK, "its answer cannot be read: no message, or a compressed one"),
        (&[], message(9, b"short"), OK, "its answer cannot be read: it is cut"),
    ] {
        let refused = answered(head, data, behind).await.expect_err(problem);
        assert_eq!(refused.to_string(), problem);
    }
}

#[test]
fn a_socket_that_nobody_serves_is_a_problem() {
    let problem = list(Path::new("/nonexistent/kubelet.sock")).expect_err("no socket").to_string();
    assert!(problem.starts_with("No such file"), "{problem}");
}

/// When the kubelet is asked, if the node is read at these times in ms and has a pod with these containers.
fn asked(readings: &[(u64, &[&str])], answer: &Answer) -> Vec<u64> {
    let (began, mut pods, mut asked) = (Instant::now(), KubeletPods::default(), Vec::new());
    for (ms, ids) in readings {
        let container = |id: &&str| Container { id: Some((*id).to_owned()), ..Container::default() };
        let pod = Pod { uid: Some("u".into()), containers: ids.iter().map(container).collect(), ..Pod::default() };
        let ask = || {
            asked.push(*ms);
            answer.clone()
        };
        let now = began + Duration::from_millis(*ms);
        assert_eq!(&pods.answer(now, &[pod], ask), answer, "each reading has the answer");
    }
    asked
}

#[test]
fn a_busy_node_asks_the_kubelet_each_five_seconds() {
    let readings: Vec<(u64, &[&str])> = (0..20).map(|n| (n * 500, &["a"] as &[&str])).collect();
    assert_eq!(asked(&readings, &Ok(vec![Pod::default()])), [0, 5000]);
    assert_eq!(asked(&readings, &Err("no answer within 2 s".into())), [0, 5000], "nor is it asked more if it refuses");
}

#[test]
fn a_new_container_makes_tracer_ask_the_kubelet_at_once() {
    let readings: [(u64, &[&str]); 5] = [(0, &["a"]), (500, &["a", "b"]), (1000, &["b"]), (1500, &["c"]), (2000, &[])];
    assert_eq!(asked(&readings, &Ok(Vec::new())), [0, 500, 1500]);
}

#[test]
fn an_answer_of_an_earlier_reading_is_renewed_when_it_is_five_seconds_old() {
    let (began, mut pods) = (Instant::now(), KubeletPods::default());
    for (ms, again) in [(0, None), (800, Some(began + EVERY)), (5000, None)] {
        let _ = pods.answer(began + Duration::from_millis(ms), &[], || Ok(Vec::new()));
        assert_eq!(pods.again, again, "{ms}");
    }
}
