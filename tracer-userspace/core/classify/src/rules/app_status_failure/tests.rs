use tracer_core::testing::*;

fn answered(kind: AnswerKind, status: Option<u16>) -> Vec<&'static str> {
    Stream::new().http_readiness().connect().established().answer(kind, status).closes((100, 101, 200)).causes()
}

#[test]
fn a_status_outside_200_to_399_is_a_failure() {
    assert_eq!(answered(AnswerKind::Http, Some(503)), ["app_status_failure"]);
    assert_eq!(answered(AnswerKind::Http, Some(404)), ["app_status_failure"]);
    assert_eq!(answered(AnswerKind::Http, None), ["app_status_failure"], "a status line without a status");
    for status in [100, 103, 200, 204, 302, 399] {
        assert!(answered(AnswerKind::Http, Some(status)).is_empty(), "{status}");
    }
    assert_eq!(answered(AnswerKind::Http, Some(101)), ["app_status_failure"], "the kubelet wants 200 to 399");
}

#[test]
fn a_tls_record_in_answer_to_plain_http_is_a_wrong_probe() {
    assert_eq!(answered(AnswerKind::Tls, None), ["probe_misconfigured"]);
    assert_eq!(answered(AnswerKind::Alert, None), ["probe_misconfigured"]);
    let mut both = Stream::new().http_readiness().connect().established().answers(200).clone();
    both.closes((100, 101, 200)).wait_ms(300).again(8);
    both.connect().established().answer(AnswerKind::Alert, None).closes((100, 101, 7));
    assert_eq!(both.causes(), ["app_status_failure"], "the port has answered in plain HTTP");
    let mut handler = Stream::new().http_readiness().lifecycle(LifecycleEvent::PreStop, 8080).clone();
    handler.connect().established().answer(AnswerKind::Alert, None).closes((100, 101, 7));
    assert_eq!(handler.causes(), ["app_status_failure"], "it may be a lifecycle handler");
}

/// A body or a certificate. The segment with the status line or the TLS record was lost, and is sent again.
#[test]
fn a_later_segment_that_arrives_first_is_not_another_protocol() {
    for (specs, first, status) in [
        (Stream::http_readiness as fn(&mut Stream) -> &mut Stream, AnswerKind::Http, Some(200)),
        (Stream::https_readiness, AnswerKind::Tls, None),
    ] {
        let mut stream = Stream::new();
        specs(&mut stream).connect().established().answer(AnswerKind::Other, None).wait_ms(200);
        assert!(stream.answer(first, status).closes((300, 301, 2200)).causes().is_empty(), "{first:?}");
    }
}

/// An httpGet probe of a mail server.
#[test]
fn bytes_before_the_request_show_a_server_that_does_not_speak_http() {
    let decided = |stream: &mut Stream, asked: bool| {
        stream.connect().established().answer_with(AnswerKind::Other, None, |it| it.asked = Some(asked));
        stream.closes((100, 101, 24)).last_verdict()
    };
    let first = decided(Stream::new().http_readiness(), false);
    assert_eq!((first.cause.name(), first.confidence), ("probe_misconfigured", Confidence::Proven));
    assert!(first.summary.contains("the server speaks first") && first.remediation.to_string().contains("tcpSocket"));
    let answer = decided(Stream::new().http_readiness(), true);
    assert_eq!(answer.cause.name(), "app_status_failure");
    assert_ends(&answer.summary, "something that is not HTTP");
    let mut both = Stream::new().http_readiness().connect().established().answers(200).clone();
    let broken = decided(both.wait_ms(300).again(8), false);
    assert_eq!(broken.cause.name(), "app_status_failure", "the port has answered in HTTP");
}

/// A tcpSocket probe of a server that sends `503` to each client right after the connect.
#[test]
fn a_status_without_a_request_is_not_a_failure() {
    let decided = |specs: fn(&mut Stream) -> &mut Stream, sent: u64, asked: Option<bool>| {
        let mut stream = Stream::new();
        specs(&mut stream).connect().established();
        stream.answer_with(AnswerKind::Http, Some(503), |it| it.asked = asked).closes((sent, sent + 1, 60)).causes()
    };
    let unknown: fn(&mut Stream) -> &mut Stream = |stream| stream;
    for specs in [unknown, Stream::tcp_readiness, |stream| stream.tcp_readiness().readiness_too()] {
        for asked in [None, Some(false)] {
            assert_eq!(decided(specs, 0, asked), ["tcp_probe_noise"], "{asked:?}");
        }
    }
    for asked in [None, Some(true)] {
        assert_eq!(decided(unknown, 100, asked), ["app_status_failure"]);
        assert_eq!(decided(Stream::http_readiness, 100, asked), ["app_status_failure"]);
    }
    // The server spoke first, and the prober then sent an HTTP request.
    assert_eq!(decided(Stream::http_readiness, 100, Some(false)), ["app_status_failure"]);
}

/// A TLS server answers plain HTTP with an alert and closes. No hook read the alert.
#[test]
fn bytes_shorter_than_a_status_line_are_a_failure() {
    let decided = |specs: fn(&mut Stream) -> &mut Stream, received: u64, by_rst: bool| {
        let mut stream = Stream::new();
        specs(&mut stream).connect().established();
        if by_rst {
            stream.reset_received(TcpState::Established, received);
            stream.state(TcpState::Established, TcpState::Close, 104, (100, 101, received));
        } else {
            stream.server_closes((100, 101, received + 1));
        }
        stream.settles().causes()
    };
    let unknown: fn(&mut Stream) -> &mut Stream = |stream| stream;
    for by_rst in [false, true] {
        for (specs, received, cause) in [
            (unknown, 7, "probe_misconfigured"),
            (Stream::http_readiness as _, 7, "probe_misconfigured"),
            (Stream::http_readiness as _, 4, "app_status_failure"),
            (Stream::http_readiness as _, 12, "app_status_failure"),
        ] {
            assert_eq!(decided(specs, received, by_rst), [cause], "{received} {by_rst}");
        }
        for (specs, received) in [(unknown, 9), (Stream::http_readiness as _, 13), (Stream::https_readiness as _, 7)] {
            assert!(decided(specs, received, by_rst).is_empty(), "{received} {by_rst}");
        }
    }
}

/// The hook read these bytes: they are no TLS alert.
#[test]
fn few_bytes_that_are_no_alert_are_no_wrong_probe() {
    let decided = |kind, len: u16, received: u64| {
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        stream.answer_with(kind, None, |it| it.len = Some(len));
        stream.server_closes((100, 101, received + 1)).settles().verdict()
    };
    assert_eq!(decided(AnswerKind::Short, 4, 7).cause.name(), "probe_misconfigured", "an alert in two segments");
    for (kind, len) in [(AnswerKind::Short, 4), (AnswerKind::Short, 9), (AnswerKind::Other, 7)] {
        let other = decided(kind, len, len.into());
        assert_eq!(other.cause.name(), "app_status_failure", "{kind:?} {len}");
        assert_lacks(&other.remediation, &["TLS", "openssl"]);
    }
}

/// `103 Early Hints` came first, and the hook reads only the first status.
#[test]
fn after_an_interim_status_the_kubelet_outcome_decides() {
    let decided = |status: u16| {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(status));
        stream.closes((100, 101, 200)).kubelet(ProbeOutput::Status(503)).wait_ms(600).tick();
        let dst = stream.verdicts().remove(0).dst;
        (stream.causes(), dst.is_some())
    };
    assert_eq!(decided(103), (vec!["app_status_failure"], true));
    assert_eq!(decided(200), (vec!["app_status_failure"], false), "on a connection that was not seen");
}

/// The server closed after a complete answer that Go's client rejects.
#[test]
fn a_complete_answer_that_the_kubelet_rejects_is_not_closed_without_answer() {
    let decided = |why: &str| {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(200));
        stream.own(|it| _ = it.server_closes((100, 101, 81))).wait_ms(1);
        stream.kubelet_messages(ProbeType::Readiness, &format!("Get \"http://10.88.0.2:8080\": {why}"));
        stream.wait_ms(5).tick().causes()
    };
    for why in [
        "failed to parse Location header",
        "malformed MIME header",
        "net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded the limit",
        "net/http: HTTP/1.x transport connection broken: bad Content-Length",
    ] {
        assert_eq!(decided(why), ["app_status_failure"], "{why}");
    }
    assert_eq!(decided("net/http: HTTP/1.x transport connection broken: unexpected EOF"), ["closed_without_answer"]);
}

/// The words of the kubelet's clients over TLS and in gRPC.
#[test]
fn a_stream_that_the_server_resets_is_an_answer() {
    let decided = |specs: fn(&mut Stream) -> &mut Stream, words: &str| {
        let mut stream = Stream::new();
        specs(&mut stream).connect().established().closes((100, 101, 200));
        stream.kubelet_messages(ProbeType::Readiness, words).wait_ms(5).tick().verdict()
    };
    let over_tls = "Get \"https://10.88.0.2:8080\": stream error: stream ID 1; INTERNAL_ERROR; received from peer";
    let in_grpc = "error: health rpc probe failed: rpc error: code = PermissionDenied desc = stream terminated by RST_STREAM with error code: INADEQUATE_SECURITY";
    let grpc: fn(&mut Stream) -> &mut Stream = |stream| stream.grpc_readiness(1);
    for (specs, words) in [(Stream::https_readiness as fn(&mut Stream) -> &mut Stream, over_tls), (grpc, in_grpc)] {
        let verdict = decided(specs, words);
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely), "{words}");
        assert_has(&verdict.summary, &["an error of HTTP/2 that ends the request (RST_STREAM)"]);
        assert_has(&verdict.remediation, &["resets the stream", "kubectl logs"]);
    }
    let by_client = "Get \"https://10.88.0.2:8080\": stream error";
    assert_eq!(decided(Stream::https_readiness, by_client).cause.name(), "unexplained");
}

/// The client reports a lost connection with `Unavailable`, too.
#[test]
fn a_failed_health_rpc_is_an_answer_if_the_connection_worked() {
    let decided = |code: &str, end: fn(&mut Stream)| {
        let mut stream = Stream::new();
        end(stream.grpc_readiness(1).connect().established());
        let words = format!("error: health rpc probe failed: rpc error: code = {code}");
        stream.kubelet_messages(ProbeType::Readiness, &words).wait_ms(5).tick().verdict()
    };
    let worked = |code: &str| {
        let verdict = decided(code, |stream| _ = stream.closes((100, 101, 200)));
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely), "{code}");
        verdict
    };
    for code in ["Unavailable", "Internal", "Unknown"] {
        let verdict = worked(code);
        assert_has(&verdict.summary, &[&format!("the health rpc ended with gRPC status {code}")]);
        assert_has(&verdict.remediation, &["Check handler", "kubectl logs"]);
    }
    // An interceptor that requires a token of every client.
    for code in ["Unauthenticated", "PermissionDenied"] {
        assert_has(&worked(code).remediation, &["without credentials"]);
    }
    let lost = |end: fn(&mut Stream)| decided("Unavailable", end).cause.name();
    assert_eq!(lost(|stream| _ = stream.server_closes((100, 101, 200))), "closed_without_answer");
    assert_eq!(lost(|stream| _ = stream.closes((100, 1, 0))), "unexplained", "no byte came");
    for code in ["DeadlineExceeded", "Canceled"] {
        let own = decided(code, |stream| _ = stream.closes((100, 101, 200)));
        assert_ne!(own.cause.name(), "app_status_failure", "{code}");
    }
}

/// Plain attach: a server of plain HTTP answers the ClientHello of an HTTPS probe with 400.
#[test]
fn a_400_to_an_unknown_probe_advises_to_correct_the_scheme() {
    let fix_of = |probed: fn(&mut Stream) -> &mut Stream| {
        let mut stream = Stream::new();
        probed(&mut stream).connect().established().answers(400).verdict().remediation
    };
    assert_has(&fix_of(|stream| stream), &["set its scheme to HTTP", "httpGet.httpHeaders"]);
    let known = fix_of(Stream::http_readiness);
    assert_has(&known, &["httpGet.httpHeaders"]);
    assert_lacks(&known, &["scheme"]);
}

/// For a cloud's metadata service or a credential provider a 404 can be normal.
#[test]
fn a_404_from_a_target_that_is_not_probed_is_no_failure() {
    let asked = |specs: bool| {
        let mut stream = Stream::new();
        if specs {
            stream.http_readiness();
        }
        stream.again_to(8, "169.254.169.254:80").connect().established().answers(404).causes()
    };
    assert!(asked(true).is_empty());
    assert_eq!(asked(false), ["app_status_failure"], "the probes are not known");
}

/// The pod's spec has not arrived yet, or a redirect led the probe to this port.
#[test]
fn a_kubelets_request_to_a_pod_is_a_probe_without_a_spec() {
    let asked = |comm: &str, target: &str| {
        let mut stream = Stream::new().http_readiness().pod_without_specs("10.88.0.9").clone();
        stream.again_to(8, target).connect().prober_named(comm).established().answers(404).causes()
    };
    for target in ["10.88.0.9:8080", "10.88.0.2:9090"] {
        assert_eq!(asked("kubelet", target), ["app_status_failure"], "{target}");
    }
    assert_eq!(asked("k3s-server", "10.88.0.9:8080"), ["app_status_failure"]);
    assert!(asked("k3s-server", "10.88.0.2:9090").is_empty(), "its API server may ask any port");
}

fn asked_and_answered(stream: &mut Stream, kind: AnswerKind, status: Option<u16>) -> &mut Stream {
    stream.connect().established().answer(kind, status).closes((300, 301, 103))
}

/// The status does not matter to HTTPS, unless it is a success: then another client asked in HTTP.
#[test]
fn an_answer_in_another_protocol_fails_the_probe() {
    let decided = |https: bool, kind, status| {
        let mut stream = Stream::new();
        if https {
            stream.https_readiness()
        } else {
            stream.grpc_readiness(1)
        };
        let verdicts = asked_and_answered(&mut stream, kind, status).verdicts();
        verdicts.first().map(|it| (it.verdict.cause.name(), it.verdict.confidence, it.verdict.remediation.clone()))
    };
    let fix = |https, kind, status| {
        let (cause, confidence, fix) = decided(https, kind, status).expect("a verdict");
        assert_eq!((cause, confidence), ("probe_misconfigured", Confidence::Proven));
        fix
    };
    assert_starts(&fix(true, AnswerKind::Http, Some(400)), "Set the probe's scheme to HTTP");
    assert_has(&fix(true, AnswerKind::Other, None), &["correct the probe's port"]);
    assert_starts(&fix(false, AnswerKind::Http, Some(505)), "Use httpGet");
    for kind in [AnswerKind::Tls, AnswerKind::Alert] {
        assert_has(&fix(false, kind, None), &["a gRPC probe speaks no TLS (grpc.mode: TLS is alpha"]);
    }
    for (https, kind) in [(true, AnswerKind::Tls), (true, AnswerKind::Short), (false, AnswerKind::Other)] {
        assert_eq!(decided(https, kind, None), None, "{https} {kind:?}");
    }
    for status in [200, 301] {
        assert_eq!(decided(true, AnswerKind::Http, Some(status)), None, "another client asked in HTTP");
    }
}

/// A server of HTTP/2 begins with SETTINGS (RFC 9113 3.4). The port speaks Redis or SSH, which may speak first.
#[test]
fn an_answer_without_a_frame_of_http2_fails_a_grpc_probe() {
    let decided = |kind, len: u16, asked| {
        let mut stream = Stream::new().grpc_readiness(1).connect().established().clone();
        stream.answer_with(kind, None, |it| (it.len, it.asked) = (Some(len), Some(asked)));
        stream.closes((33, 34, len.into())).settles();
        (stream.causes(), stream.attempt_outcomes())
    };
    for asked in [true, false] {
        let failed = (vec!["probe_misconfigured"], vec![Some(Outcome::Failure)]);
        assert_eq!(decided(AnswerKind::Other, 70, asked), failed);
    }
    let succeeded = (vec![], vec![Some(Outcome::Success)]);
    assert_eq!(decided(AnswerKind::Http2, 70, true), succeeded);
    assert_eq!(decided(AnswerKind::Other, 8, true), succeeded, "the header of the frame may have been cut");
}

/// A gRPC server wrote the first bytes of its frame by themselves, and the next segment arrived before them.
#[test]
fn a_later_segment_does_not_show_another_protocol() {
    let decided = |specs: fn(&mut Stream) -> &mut Stream, first: (AnswerKind, u16)| {
        let mut stream = Stream::new();
        specs(&mut stream).connect().established();
        for (kind, len) in [(AnswerKind::Other, 105), first] {
            stream.answer_with(kind, None, |it| (it.len, it.asked) = (Some(len), Some(true)));
        }
        stream.closes((45, 46, u64::from(first.1) + 105)).settles().causes()
    };
    let grpc: fn(&mut Stream) -> &mut Stream = |stream| stream.grpc_readiness(1);
    for specs in [grpc, Stream::http_readiness, Stream::https_readiness] {
        assert!(decided(specs, (AnswerKind::Short, 3)).is_empty());
    }
    assert!(decided(grpc, (AnswerKind::Other, 6)).is_empty());
    assert!(decided(grpc, (AnswerKind::Http2, 40)).is_empty());
    assert_eq!(decided(grpc, (AnswerKind::Other, 70)), ["probe_misconfigured"], "neither is a frame");
}

/// The server requires a client certificate. Its alert follows its first flight, and is encrypted in TLS 1.3.
#[test]
fn an_alert_after_the_first_flight_fails_an_https_probe() {
    let decided = |rest: u64, end: fn(&mut Stream, (u64, u64, u64)) -> &mut Stream| {
        let mut stream = Stream::new().https_readiness().connect().established().clone();
        stream.answer_with(AnswerKind::Tls, None, |it| it.len = Some(1_400));
        end(&mut stream, (622, 623, 1_400 + rest)).settles();
        (stream.all_decided(), stream.attempt_outcomes())
    };
    let by_server: fn(&mut Stream, (u64, u64, u64)) -> &mut Stream =
        |stream, (sent, acked, received)| stream.server_closes((sent, acked, received + 1));
    let by_reset: fn(&mut Stream, (u64, u64, u64)) -> &mut Stream = |stream, bytes| {
        stream.reset_received(TcpState::Established, bytes.2);
        stream.state(TcpState::Established, TcpState::Close, libc::ECONNRESET, bytes)
    };
    let failed = (vec![("app_status_failure", Confidence::Likely)], vec![Some(Outcome::Failure)]);
    for end in [by_server, by_reset, Stream::closes] {
        assert_eq!(decided(7, end), failed);
        assert_eq!(decided(24, end), failed);
        assert_eq!(decided(0, end), (vec![], vec![None]), "no HTTP answer, and no evidence why");
    }
    for end in [by_server, Stream::closes] {
        assert_eq!(decided(400, end), (vec![], vec![Some(Outcome::Success)]));
    }
    assert_eq!(decided(400, by_reset), (vec![], vec![None]), "the answer may have been cut");
    let mut closed = Stream::new().https_readiness().connect().established().clone();
    closed.answer_with(AnswerKind::Tls, None, |it| it.len = Some(1_400)).closes((622, 623, 1_424));
    let verdict = closed.settles().last_verdict();
    assert_has(&verdict.summary, &["refused it, or closed (close_notify) without an answer"]);
    assert_starts(
        &verdict.remediation,
        "The server's log says why. If it refused the handshake, let the server accept",
    );
    let mut late = Stream::new().https_readiness().connect().established().clone();
    late.answer_with(AnswerKind::Tls, None, |it| it.len = Some(1_400)).wait_ms(1_000).closes((622, 623, 1_424));
    assert!(!late.settles().causes().contains(&"app_status_failure"), "the rest came too late");
}

/// Kubernetes 1.37 has `grpc.mode: TLS` and `httpGet.protocol: HTTP2`; a later one has others.
#[test]
fn a_protocol_that_the_spec_asks_for_is_not_another_protocol() {
    use ProbeProtocol::{Http2, Tls, Unknown};
    let decided = |grpc: bool, speaks, kind, status| {
        let mut stream = Stream::new();
        if grpc {
            stream.grpc_readiness(1)
        } else {
            stream.http_readiness()
        };
        asked_and_answered(stream.speaking(speaks), kind, status).causes()
    };
    for kind in [AnswerKind::Tls, AnswerKind::Other, AnswerKind::Alert] {
        assert!(decided(true, Unknown, kind, None).is_empty() && decided(false, Unknown, kind, None).is_empty());
    }
    assert!(decided(true, Tls, AnswerKind::Tls, None).is_empty(), "the server's part of the handshake");
    assert!(decided(false, Http2, AnswerKind::Other, None).is_empty(), "a frame of HTTP/2");
    for (grpc, speaks) in [(true, Tls), (false, Http2)] {
        assert_eq!(decided(grpc, speaks, AnswerKind::Http, Some(400)), ["probe_misconfigured"]);
    }
    assert_eq!(decided(true, Tls, AnswerKind::Other, None), ["probe_misconfigured"], "no TLS");
    assert_eq!(decided(false, Http2, AnswerKind::Tls, None), ["probe_misconfigured"]);
}

#[test]
fn another_protocol_than_the_port_answered_before_is_no_wrong_probe() {
    let decided = |before, kind, status| {
        let mut stream = Stream::new();
        asked_and_answered(stream.grpc_readiness(1), before, None).wait_ms(300).again(8);
        asked_and_answered(&mut stream, kind, status).causes()
    };
    assert_eq!(decided(AnswerKind::Other, AnswerKind::Http, Some(503)), ["app_status_failure"]);
    assert_eq!(decided(AnswerKind::Other, AnswerKind::Alert, None), ["app_status_failure"]);
    assert_eq!(decided(AnswerKind::Alert, AnswerKind::Http, Some(503)), ["probe_misconfigured"; 2]);
}

#[test]
fn another_protocol_behind_a_redirect_is_no_wrong_protocol() {
    let mut stream = Stream::new();
    asked_and_answered(stream.http_readiness(), AnswerKind::Http, Some(302)).again(8);
    asked_and_answered(&mut stream, AnswerKind::Alert, None);
    assert_eq!(stream.causes(), ["app_status_failure"]);
    assert_has(&stream.verdict().summary, &["the probe was redirected (status 302), which led here"]);
}

/// A proxy of the mesh answers in HTTP/1 for an application that may speak gRPC.
#[test]
fn another_protocol_by_a_proxy_is_no_wrong_probe() {
    let decided = |container: &str| {
        let mut stream = Stream::new();
        asked_and_answered(stream.grpc_readiness(1).container_too(container), AnswerKind::Http, Some(503)).causes()
    };
    assert_eq!(decided("istio-proxy"), ["app_status_failure"]);
    assert_eq!(decided("sidecar"), ["probe_misconfigured"]);
}

/// kubernetes/kubernetes#38144, #92647: the server requires another cipher, or a client certificate.
#[test]
fn a_tls_alert_to_an_https_probe_is_a_failure() {
    let alert = asked_and_answered(Stream::new().https_readiness(), AnswerKind::Alert, None).verdict();
    assert_eq!((alert.cause.name(), alert.confidence), ("app_status_failure", Confidence::Proven));
    assert_ends(&alert.summary, "a fatal alert that refuses the TLS handshake");
    assert_has(&alert.remediation, &["no client certificate", "kubectl logs"]);
    let mut decided = Stream::new().https_readiness().connect().established().clone();
    decided.closes((300, 301, 2000)).kubelet(ProbeOutput::TlsRefused);
    let reported = decided.verdict();
    assert_eq!((reported.cause.name(), reported.confidence), ("app_status_failure", Confidence::Likely));
    assert_eq!(reported.remediation, alert.remediation);
}

/// Go 1.23 and later reject a certificate with a negative serial number (crypto/x509).
#[test]
fn a_certificate_that_the_kubelets_client_rejects_is_a_failure() {
    let decided = |why: &str| {
        let mut stream = Stream::new().https_readiness().connect().established().clone();
        stream.answer(AnswerKind::Tls, None).closes((300, 301, 2000));
        stream.kubelet_messages(ProbeType::Readiness, &format!("Get \"https://10.88.0.2:8080\": {why}")).verdict()
    };
    let rejected = decided("tls: failed to parse certificate from server");
    assert_eq!((rejected.cause.name(), rejected.confidence), ("app_status_failure", Confidence::Likely));
    assert_has(&rejected.summary, &["a TLS handshake that the kubelet's client rejects"]);
    assert_has(&rejected.remediation, &["certificate", "openssl s_client"]);
    assert_eq!(decided("local error: tls: bad record MAC").cause.name(), "unexplained");
}

/// Liveness and readiness use one port: the status of the kubelet outcome came over the other connection.
#[test]
fn a_kubelet_status_is_not_given_to_the_connection_with_a_tls_alert() {
    let mut stream = Stream::new();
    asked_and_answered(stream.https_readiness().https_liveness_too(), AnswerKind::Alert, None).again(8);
    asked_and_answered(&mut stream, AnswerKind::Tls, None).wait_ms(5).kubelet(ProbeOutput::Status(503));
    let decided = stream.verdicts();
    let quoted: Vec<_> =
        decided.iter().filter(|it| it.kubelet.is_some()).map(|it| it.verdict.summary.as_str()).collect();
    assert!(decided.len() == 2 && quoted.len() == 1 && quoted[0].contains("HTTP status 503"), "{quoted:?}");
}

/// A tcpSocket probe has succeeded by then. Without a spec, the server may refuse the certificate of an unknown client.
#[test]
fn a_tls_alert_without_a_known_tls_request_is_no_failure() {
    for probed in [Stream::tcp_readiness as fn(&mut Stream) -> &mut Stream, |stream| stream] {
        let mut stream = Stream::new();
        probed(&mut stream).connect().established().answer(AnswerKind::Alert, None);
        stream.closes((0, 1, 7));
        assert!(stream.causes().is_empty(), "{:?}", stream.causes());
    }
    let mut overtaken = Stream::new();
    overtaken.https_readiness().connect().established().answer(AnswerKind::Alert, None).answer(AnswerKind::Tls, None);
    assert!(overtaken.closes((300, 301, 900)).causes().is_empty());
}

/// An HTTPS probe follows a redirect to `http://` on the same port.
#[test]
fn plain_http_from_a_port_that_speaks_tls_may_come_of_a_redirect() {
    let mut stream = Stream::new();
    asked_and_answered(stream.https_readiness(), AnswerKind::Tls, None).again(8);
    asked_and_answered(&mut stream, AnswerKind::Http, Some(400));
    let verdict = stream.verdict();
    assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
    assert_ends(&verdict.summary, "redirected to http:// on it");
    assert_eq!(stream.wait_ms(3).kubelet(ProbeOutput::Status(400)).causes().len(), 1, "the same cause");
}

/// A port that speaks both. In between, the bytes of a plain answer were not read, but the kubelet outcome tells it.
#[test]
fn an_answer_in_tls_is_not_forgotten_for_one_in_another_protocol() {
    let after = |kind: Option<AnswerKind>| {
        let mut stream = Stream::new().https_readiness().connect().established().clone();
        kind.into_iter().for_each(|kind| _ = stream.answer(kind, None));
        stream.closes((300, 301, 900)).wait_ms(9_000).again(8).connect().established().closes((300, 301, 103));
        stream.wait_ms(3).kubelet(ProbeOutput::NotHttp).wait_ms(9_000).again(9);
        asked_and_answered(&mut stream, AnswerKind::Http, Some(400)).last_decided()
    };
    assert_eq!(after(Some(AnswerKind::Tls)), ("app_status_failure", Confidence::Likely));
    assert_eq!(after(None).0, "probe_misconfigured", "no byte of the first one was read");
}

/// The first segment of the TLS server's answer was lost: the prober received no bytes in order.
#[test]
fn bytes_out_of_order_are_no_answer() {
    for probed in [Stream::https_readiness, Stream::http_readiness] {
        let mut stream = Stream::new();
        probed(&mut stream).connect().established().answer(AnswerKind::Other, None).wait_ms(300);
        stream.closes((300, 301, 0));
        assert_eq!(stream.causes(), ["unexplained"]);
    }
}

/// A lifecycle handler or a user may have sent plain HTTP. Or the server of a tcpSocket probe speaks first.
#[test]
fn plain_http_is_no_failure_if_the_attempt_may_not_be_the_https_probe() {
    let decided = |probed: fn(&mut Stream) -> &mut Stream, comm: &str| {
        let mut stream = Stream::new();
        probed(&mut stream).connect().prober_named(comm).established().answers(400).causes()
    };
    assert!(decided(|it| it.https_readiness().lifecycle(LifecycleEvent::PreStop, 8080), "kubelet").is_empty());
    assert!(decided(Stream::https_readiness, "k3s-server").is_empty());
    assert_eq!(decided(Stream::https_readiness, "kubelet"), ["probe_misconfigured"]);
    let mut banner = Stream::new();
    banner.tcp_readiness().https_liveness_too().connect().established().answer(AnswerKind::Other, None);
    assert_eq!(banner.closes((0, 1, 41)).causes(), ["tcp_probe_noise"]);
}

#[test]
fn the_fix_is_for_what_the_kubelet_read() {
    let grpc: fn(&mut Stream) -> &mut Stream = |stream| stream.grpc_readiness(1);
    for (specs, reason, fix) in [
        (Stream::https_readiness as fn(&mut Stream) -> &mut Stream, ProbeOutput::NotHttp, "The probe uses HTTPS"),
        (grpc, ProbeOutput::NoHealthService, "Register the gRPC health service"),
    ] {
        let mut stream = Stream::new();
        let verdict = specs(&mut stream).connect().established().closes((300, 301, 103)).kubelet(reason).verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
        assert_starts(&verdict.remediation, fix);
    }
}

/// grpc-go takes a 404 for a method that is not implemented.
#[test]
fn http2_without_grpc_is_no_lack_of_the_health_service() {
    let mut stream = Stream::new().grpc_readiness(1).connect().established().closes((300, 301, 103)).clone();
    let words = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unexpected HTTP status code received from server: 404";
    stream.kubelet_with(ProbeOutput::NoHealthService, |it| it.output = Some(words.into()));
    let verdict = stream.verdict();
    assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
    assert_has(&verdict.summary, &["answered: an HTTP status 404 without gRPC"]);
    assert_starts(&verdict.remediation, "Set the port of the probe to one that speaks gRPC");
}

/// Go's words tell plain HTTP from something else in TLS.
#[test]
fn the_kubelet_outcome_tells_a_port_without_tls() {
    let decided = |words: &str| {
        let mut stream = Stream::new().https_readiness().connect().established().clone();
        stream.closes((300, 301, 103));
        let output = Some(format!("Get \"https://10.88.0.2:8080\": {words}"));
        stream.kubelet_with(ProbeOutput::NotHttp, |it| it.output = output).decided()
    };
    let wrong = ("probe_misconfigured", Confidence::Likely);
    assert_eq!(decided("http: server gave HTTP response to HTTPS client"), wrong);
    assert_eq!(decided("tls: first record does not look like a TLS handshake"), wrong);
    let within = "net/http: HTTP/1.x transport connection broken: malformed HTTP response \"x\"";
    assert_eq!(decided(within), ("app_status_failure", Confidence::Likely));
}

/// The kubelet's client of gRPC reads no HTTP/1, whatever the status is. But another client may have asked in HTTP/1.
#[test]
fn an_answer_of_http_1_to_grpc_is_no_success() {
    for (status, confidence) in [(200, Confidence::Likely), (302, Confidence::Likely), (404, Confidence::Proven)] {
        let mut stream = Stream::new();
        stream.grpc_readiness(1).connect().established().answers(status).closes((100, 101, 200)).settles();
        assert_eq!(stream.last_decided(), ("probe_misconfigured", confidence), "{status}");
        let summary = stream.last_verdict().summary;
        assert_has(&summary, &["in answer to gRPC (HTTP/2)"]);
        assert_eq!(summary.contains("another client"), confidence == Confidence::Likely);
    }
}

#[test]
fn the_fix_fits_the_status() {
    let fix = |status: u16| {
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        stream.answers(status).closes((100, 101, 200)).last_verdict().remediation.to_string()
    };
    for (status, words) in [
        (401, "credentials"),
        (403, "credentials"),
        (404, "correct the probe's path"),
        (405, "GET"),
        (426, "wants another protocol than HTTP/1.1"),
        (429, "periodSeconds"),
        (431, "shorten httpGet.httpHeaders"),
        (505, "does not accept HTTP/1.1"),
        (503, "Find what the health handler checks"),
    ] {
        assert!(fix(status).contains(words) && fix(status).contains("kubectl logs"), "{status}: {}", fix(status));
    }
}

#[test]
fn an_answer_before_the_request_of_an_http_probe_is_a_failure() {
    let decided = |specs: fn(&mut Stream) -> &mut Stream, kind, status, connected_ms| {
        let mut stream = Stream::new();
        specs(&mut stream).connect().wait_ms(connected_ms).established();
        stream.answer_with(kind, status, |it| it.asked = Some(false)).closes((0, 1, 60)).causes()
    };
    let http = Stream::http_readiness;
    assert_eq!(decided(http, AnswerKind::Http, Some(503), 1), ["app_status_failure"]);
    assert_eq!(decided(http, AnswerKind::Http2, None, 1), ["probe_misconfigured"]);
    assert!(decided(http, AnswerKind::Http, Some(200), 1).is_empty());
    assert!(!decided(http, AnswerKind::Http, Some(503), 1_001).contains(&"app_status_failure"), "after the timeout");
    let both: fn(&mut Stream) -> &mut Stream = |stream| stream.http_readiness().tcp_readiness();
    assert!(!decided(both, AnswerKind::Http, Some(503), 1).contains(&"app_status_failure"), "it may be tcpSocket");
}

/// A server of gRPC sends its first frame at once: it is chance whether that is before the request.
#[test]
fn a_frame_of_http2_in_answer_to_plain_http_is_a_wrong_probe() {
    assert_eq!(answered(AnswerKind::Http2, None), ["probe_misconfigured"]);
    let mut grpc = Stream::new().grpc_readiness(1).connect().established().answer(AnswerKind::Http2, None).clone();
    assert!(grpc.closes((100, 101, 200)).causes().is_empty());
}

/// The kubelet reports a status `DeadlineExceeded` of the server like its own timeout.
#[test]
fn an_rpc_that_timed_out_in_the_server_is_an_answer() {
    let decided = |timeout_s: u32, lasted_ms: u64| {
        let mut stream = Stream::new().grpc_readiness(timeout_s).clone();
        stream.connect().established().answer(AnswerKind::Http2, None).wait_ms(lasted_ms);
        stream.closes((200, 201, 60)).kubelet_with(ProbeOutput::Timeout, |it| {
            it.output = Some("timeout: health rpc did not complete within 1s".to_owned());
        });
        let verdict = stream.wait_ms(5).tick().last_verdict();
        (verdict.cause.name(), verdict.confidence)
    };
    assert_eq!(decided(1, 10), ("app_status_failure", Confidence::Likely));
    assert_eq!(decided(1, 990).0, "slow_response");
    assert_ne!(decided(5, 10).0, "app_status_failure", "the probe may have connected before");
}
