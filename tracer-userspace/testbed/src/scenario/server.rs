//! The target fails: nothing listens, it resets, or it does not answer.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tracer_model::record::Cause;

use super::{Fixture, Knows, Need, Scenario};
use crate::cgroup::Cgroup;
use crate::check::Claim;
use crate::node::Family;
use crate::pods::{GRPC, HOST, HTTP, LOOPBACK_HOST, SLOW_START, TLS, UNLISTED_TLS, host_uid};
use crate::probe::{Ending, Kind, ProbeRequest};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("connection_refused", REFUSED, refused).own().and_v6_on_every_kernel(),
    // The process listens, but not on the address that the kubelet connects to.
    Scenario::probed("connection_refused_other_address", REFUSED, "http", Ending::Refused)
        .without_server()
        .fault(|s, pod| s.serve(pod, "http", "127.0.0.1:8080"))
        .smoke(),
    Scenario::probed("connection_refused_other_device", REFUSED, "on-lo", Ending::Refused)
        .names(&["listens on", "(SO_BINDTODEVICE)"]),
    Scenario::new("connection_refused_host_network", REFUSED, |s| {
        on_node(s, "127.0.0.1:10256", "listens on 127.0.0.1:10256 only")
    })
    .own()
    .needs(&[Need::Freezer])
    .and_v6(),
    Scenario::new("connection_refused_host_network_port", REFUSED, |s| {
        on_node(s, "[::]:10257", "of the pod listens on port 10257 instead")
    })
    .own()
    .needs(&[Need::Freezer]),
    Scenario::probed("connection_refused_after_end", REFUSED, "http", Ending::Refused).succeeds_first().fault(stop),
    Scenario::new("connection_refused_beside_commands", REFUSED, beside_commands).knows(Knows::Log).and_v6(),
    Scenario::new("connection_refused_beside_redirect", REFUSED, beside_redirect).knows(Knows::Log),
    // A network appliance sends the RST, not the TCP of a kernel.
    Scenario::new("handshake_rst", Some(Cause::HandshakeRst), |s| {
        stopped_by_appliance(s, "appliance", Ending::Refused)
    })
    .needs(&[Need::PacketSocket])
    .on_every_kernel(),
    Scenario::probed("mid_stream_rst", RST, "rst", Ending::Reset).on_every_kernel().and_v6_on_every_kernel(),
    Scenario::probed("mid_stream_rst_exit", RST, "exit-unread", Ending::Reset)
        .names(&["at the same time: it exited, crashed or was stopped"])
        .own(),
    Scenario::new("mid_stream_rst_destroyed", RST, destroyed).own().needs(&[Need::SocketDestroy]),
    // It closes before the request comes. With unread data it would be `closed_without_answer`.
    Scenario::probed("mid_stream_rst_at_accept", RST, "rst-at-accept", Ending::Reset).probe(Kind::LateHttp, SLOW_START),
    Scenario::probed("mid_stream_rst_in_the_middle", RST, "bodyless-rst", Ending::Reset),
    Scenario::probed("slow_response", SLOW, "hang", Ending::Timeout).on_every_kernel().and_v6_on_every_kernel(),
    Scenario::new("slow_response_keepalive", SLOW, keeps_alive).own(),
    Scenario::probed("slow_response_partial", SLOW, "bodyless", Ending::Timeout),
    Scenario::probed("slow_response_partial_deferred", SLOW, "deferred-bodyless", Ending::Timeout),
    Scenario::probed("slow_response_partial_failure", SLOW, "bodyless-503", Ending::Timeout)
        .names(&["(status 503), but it did not end in time"])
        .also(Cause::AppStatusFailure)
        .own(),
    Scenario::probed("slow_response_never_accepted", SLOW, "noaccept", Ending::Timeout),
    Scenario::probed("tls_handshake_slow_never_accepted", SLOW, "noaccept", Ending::Timeout).https(),
    Scenario::probed("slow_response_after_handshake", SLOW, "tls-hang-request", Ending::Timeout).https(),
    // The process needs the CPU, and its container has used up its CPU quota.
    Scenario::probed("slow_response_throttled", SLOW, "burn", Ending::Timeout)
        .fault(|s, pod| s.pod_of(pod)?.join([Cgroup::throttled("throttled")?]))
        .also(Cause::CpuThrottled)
        .needs(&[Need::CpuQuota]),
    // The limit is of the cgroup above the container's.
    Scenario::probed("slow_response_throttled_above", SLOW, "burn", Ending::Timeout)
        .fault(|s, pod| s.pod_of(pod)?.join(Cgroup::throttled_above("throttled")?))
        .also(Cause::CpuThrottled)
        .needs(&[Need::CpuQuota]),
    Scenario::new("kubelet_delayed", DELAYED, |s| sends_request_late(s, "hang", Kind::Http, HTTP)).own().and_v6(),
    Scenario::new("kubelet_delayed_tls", DELAYED, |s| sends_request_late(s, "tls-hang", Kind::Https, TLS)).own(),
    Scenario::new("kubelet_delayed_unread", DELAYED, |s| reads_nothing(s, "http", Kind::Http, HTTP)).own(),
    Scenario::new("kubelet_delayed_unread_tls", DELAYED, |s| reads_nothing(s, "tls", Kind::Https, TLS)).own(),
    Scenario::new("kubelet_delayed_slow_path", SLOW, slow_path).own().needs(&[Need::Tap]).and_v6(),
    Scenario::probed("tls_handshake_slow", TLS_SLOW, "tls-hang", Ending::Timeout).https().on_every_kernel().and_v6(),
    Scenario::probed("tls_handshake_slow_by_url", TLS_SLOW, "tls-hang", Ending::Timeout)
        .probe(Kind::Https, HTTP)
        .kubelet_reports("{get}: net/http: TLS handshake timeout")
        .and_v6(),
    Scenario::probed("slow_response_by_url", SLOW, "hang", Ending::Timeout)
        .kubelet_reports("{get}: context deadline exceeded"),
    // A network appliance drops the SYN silently. There is no evidence.
    Scenario::new("unexplained", Some(Cause::Unexplained), |s| stopped_by_appliance(s, "mute", Ending::Timeout))
        .needs(&[Need::PacketSocket]),
    // Its SYNs go on after the pod is gone.
    Scenario::new("unexplained_dials_on", Some(Cause::Unexplained), keeps_connecting)
        .own()
        .needs(&[Need::PacketSocket]),
    Scenario::probed("closed_without_answer", CLOSED, "eof", Ending::Eof).and_v6(),
    Scenario::probed("closed_without_answer_exit", CLOSED, "exit", Ending::Eof),
    Scenario::probed("closed_without_answer_unread", CLOSED, "rst-unread", Ending::Reset)
        .names(&["closed it with unread data"])
        .on_every_kernel(),
    Scenario::new("closed_without_answer_at_accept", CLOSED, closed_before_request).and_v6(),
    // The request needs more memory than the container may have.
    Scenario::probed("closed_without_answer_oom", CLOSED, "greedy", Ending::Eof)
        .fault(|s, pod| s.pod_of(pod)?.join([Cgroup::small("memory")?]))
        .names(&["was killed for lack of memory"])
        .own()
        .on_every_kernel()
        .needs(&[Need::MemoryLimit]),
    Scenario::new("closed_without_answer_exit_slowly", CLOSED, exits_slowly).own(),
    Scenario::probed("closed_without_answer_by_url", CLOSED, "tls-eof", Ending::Eof)
        .probe(Kind::Https, HTTP)
        .names(&["after the handshake and before its answer was complete"])
        .kubelet_reports("{get}: EOF"),
    Scenario::probed("closed_without_answer_goaway", CLOSED, "tls-eof", Ending::Eof)
        .probe(Kind::Https, HTTP)
        .names(&["sent GOAWAY (HTTP/2) and closed the connection"])
        .kubelet_reports(
            "{get}: http2: server sent GOAWAY and closed the connection; LastStreamID=0, \
             ErrCode=NO_ERROR, debug=\"\"",
        ),
    Scenario::probed("probe_misconfigured_grpc_banner", MISCONFIGURED, "banner", Ending::Error)
        .probe(Kind::Grpc, GRPC)
        .names(&["no frame of HTTP/2 in answer to gRPC"])
        .own(),
    Scenario::probed("probe_misconfigured_grpc_eof", CLOSED, "eof", Ending::Eof).probe(Kind::Grpc, GRPC).own(),
    Scenario::new("healthy_closed_by_server", None, closes_at_accept),
    Scenario::probed("app_status_failure", BAD_STATUS, "503", Ending::Status).smoke().and_v6_on_every_kernel(),
    Scenario::probed("app_status_failure_not_http", BAD_STATUS, "not-http", Ending::Eof),
    Scenario::probed("app_status_failure_no_status", BAD_STATUS, "no-status", Ending::Error)
        .names(&["no status of three digits"]),
    Scenario::probed("app_status_failure_before_request", BAD_STATUS, "greet-503", Ending::Status)
        .probe(Kind::LateHttp, SLOW_START),
    Scenario::probed("probe_misconfigured_http2", MISCONFIGURED, "grpc", Ending::Error)
        .probe(Kind::Http, SLOW_START)
        .names(&["a frame of HTTP/2"]),
    Scenario::probed("app_status_failure_by_url", BAD_STATUS, "http", Ending::Ok).kubelet_reports(
        "{get}: net/http: HTTP/1.x transport connection broken: \
             malformed MIME header line: X-A (x): 1",
    ),
    Scenario::probed("app_status_failure_stream_reset", BAD_STATUS, "grpc-reset", Ending::Error)
        .probe(Kind::Grpc, HTTP)
        .names(&["an error of HTTP/2 that ends the request (RST_STREAM)"])
        .kubelet_reports(
            "error: health rpc probe failed: rpc error: code = Internal desc = \
             stream terminated by RST_STREAM with error code: INTERNAL_ERROR",
        ),
    Scenario::new("app_status_failure_speaks_first", MISCONFIGURED, speaks_first).and_v6(),
    Scenario::probed("app_status_failure_tls_on_plain", MISCONFIGURED, "tls", Ending::Eof),
    Scenario::probed("app_status_failure_not_tls", MISCONFIGURED, "banner", Ending::Error).https(),
    Scenario::probed("app_status_failure_tls_refused", BAD_STATUS, "tls-refuse", Ending::Error).https(),
    // kubernetes/kubernetes#92647
    Scenario::probed("app_status_failure_client_cert", BAD_STATUS, "tls-client-cert", Ending::Error)
        .https()
        .names(&["as many bytes as an alert has"])
        .own(),
    Scenario::probed("app_status_failure_short", BAD_STATUS, "short", Ending::Eof),
    Scenario::probed("probe_misconfigured", MISCONFIGURED, "go-tls", Ending::Status).and_v6(),
    Scenario::probed("probe_misconfigured_host", MISCONFIGURED, "421", Ending::Status),
    Scenario::new("probe_misconfigured_redirect_loop", MISCONFIGURED, redirect_loop),
    Scenario::new("probe_misconfigured_redirect_dead", MISCONFIGURED, redirect_dead),
    Scenario::new("probe_misconfigured_redirect_dead_unlisted", MISCONFIGURED, redirect_dead)
        .knows(Knows::Log)
        .and_v6(),
    Scenario::probed("probe_misconfigured_by_url", MISCONFIGURED, "400", Ending::Error)
        .probe(Kind::Https, HTTP)
        .kubelet_reports("{get}: http: server gave HTTP response to HTTPS client"),
    Scenario::new("app_status_failure_other_pod_ends", BAD_STATUS, other_pod_ends),
    Scenario::new("app_status_failure_loopback_host", BAD_STATUS, answered_on_loopback).own(),
    Scenario::new("probe_misconfigured_loopback_host", MISCONFIGURED, loopback_host).own(),
    Scenario::new("app_status_unasked", None, unavailable_source),
    Scenario::probed("app_status_large_answer", None, "big", Ending::Ok),
];

const REFUSED: Option<Cause> = Some(Cause::ConnectionRefused);
const RST: Option<Cause> = Some(Cause::MidStreamRst);
const SLOW: Option<Cause> = Some(Cause::SlowResponse);
const TLS_SLOW: Option<Cause> = Some(Cause::TlsHandshakeSlow);
const CLOSED: Option<Cause> = Some(Cause::ClosedWithoutAnswer);
const DELAYED: Option<Cause> = Some(Cause::KubeletDelayed);
const BAD_STATUS: Option<Cause> = Some(Cause::AppStatusFailure);
const MISCONFIGURED: Option<Cause> = Some(Cause::ProbeMisconfigured);
/// A port of the pods that has no probe.
const UNPROBED: u16 = 9100;

/// The pod is older than the tracer, so tracer cannot know whether it ever listened.
fn refused(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    fixture.fails(Kind::Tcp, pod, Ending::Refused)
}

/// A process of a hostNetwork pod listens elsewhere. A process of the node listens on the port, too, and is not named.
fn on_node(fixture: &mut Fixture<'_>, at: &str, words: &str) -> Result<()> {
    let (options, target) = (fixture.options, fixture.address_on_node());
    fixture.node.serve(options, &["http", &format!("127.0.0.9:{HOST}")])?;
    let pid = fixture.node.serve_in_pod(&host_uid(), options, &["http", at])?;
    fixture.fails(Kind::Http, target, Ending::Refused)?;
    // tracer reads the sockets of the pod after the first refusal.
    thread::sleep(options.probe_timeout / 2);
    fixture.mentions(&[&format!("(pid {pid}) {words}")]);
    fixture.fails(Kind::Http, target, Ending::Refused)
}

/// The pods run commands as probes, too. What these print is about no connection.
fn beside_commands(fixture: &mut Fixture<'_>) -> Result<()> {
    let (dead, pod) = (fixture.pod(HTTP)?, fixture.serving("http", HTTP)?);
    let health_probe = format!("timeout: failed to connect service \"{pod}\" within 1s");
    for (count, printed) in (1..).zip(["cat: /tmp/ready: No such file or directory", "", &health_probe]) {
        fixture.succeeds(Kind::Http, pod)?;
        fixture.kubelet_reports(pod, printed)?;
        fixture.reported_alone(Cause::ExecFailed, count)?;
    }
    let rpc = "error: health rpc probe failed: rpc error: code = Internal desc = no database\nretry";
    for (count, answered) in (1..).zip(["service unhealthy (responded with \"NOT_SERVING\")", rpc]) {
        fixture.succeeds(Kind::Http, pod)?;
        fixture.kubelet_reports(pod, answered)?;
        fixture.reported_alone(Cause::Unexplained, count)?;
    }
    fixture.fails(Kind::Http, dead, Ending::Refused)?;
    fixture.kubelet_reports(dead, "cat: /tmp/ready: No such file or directory")?;
    fixture.reported_alone(Cause::ExecFailed, 4)
}

/// Another process than the server destroys the server's socket, as `ss -K` and the agents of some CNIs do.
fn destroyed(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("hang", HTTP)?;
    fixture.mentions(&["ss (pid ", " destroyed its socket (SOCK_DESTROY)"]);
    fixture.fails_while(pod, fixture.options.patience, &[Ending::Reset], |fixture| {
        fixture.wait_for_request(pod)?;
        fixture.inside(pod)?.run("ss", &["-K", "sport", "= :8080"], "").map(drop)
    })
}

/// When the process ends, its listener ends a moment after the connection. The first attempt lets tracer read the pod's
/// sockets: then the second verdict does not wait for them.
fn exits_slowly(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("exit-slowly", HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Eof)?;
    fixture.mentions(&["its listener ended at the same time"]);
    fixture.fails(Kind::Http, pod, Ending::Eof)
}

/// The process of the pod exits.
fn stop(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    fixture.pod_of(pod)?.stop();
    Ok(())
}

fn stopped_by_appliance(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let pod = appliance(fixture, mode)?;
    fixture.fails(Kind::Http, pod, how)
}

/// The appliance is mute, and the prober keeps its socket in SYN_SENT for two minutes. tracer emits the verdict when the
/// probe times out.
fn keeps_connecting(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = appliance(fixture, "mute")?;
    let probe = ProbeRequest::new(Kind::Http, pod, fixture.options.probe_timeout);
    let claim = fixture.expected_verdict()?;
    fixture.request(ProbeRequest { keeps_connecting: true, ..probe }, &[Ending::Timeout], claim)
}

/// The prober connects, and sends its request only after most of its timeout.
fn sends_request_late(fixture: &mut Fixture<'_>, mode: &str, kind: Kind, port: u16) -> Result<()> {
    let pod = fixture.serving(mode, port)?;
    let probe = ProbeRequest::new(kind, pod, fixture.options.probe_timeout);
    let claim = fixture.expected_verdict()?;
    fixture.request(ProbeRequest { idle_ms: probe.timeout_ms / 5 * 4, ..probe }, &[Ending::Timeout], claim)
}

/// The prober has no CPU time between its first bytes and its timeout. The server has answered by then.
fn reads_nothing(fixture: &mut Fixture<'_>, mode: &str, kind: Kind, port: u16) -> Result<()> {
    let pod = fixture.serving(mode, port)?;
    let probe = ProbeRequest::new(kind, pod, fixture.options.probe_timeout);
    let claim = fixture.expected_verdict()?;
    fixture.mentions(&["lay in the prober's socket for "]);
    fixture.request(ProbeRequest { stalls_ms: probe.timeout_ms + 20, ..probe }, &[Ending::Timeout], claim)
}

/// The server sends keepalive segments until the prober closes, and no answer.
fn keeps_alive(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("hang-keepalive", HTTP)?;
    let timeout = Duration::from_millis(3_500).max(fixture.options.probe_timeout);
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |_| Ok(()))
}

/// A segment and its answer take a third of the prober's timeout. The prober sends its request at once.
fn slow_path(fixture: &mut Fixture<'_>) -> Result<()> {
    let index = fixture.node.distant_pod(fixture.options.probe_timeout.mul_f32(0.37))?.index;
    let pod = fixture.node.pod_at(index)?.addr(fixture.family, HTTP);
    fixture.serve(pod, "hang", &format!("[::]:{HTTP}"))?;
    // The search for the link-layer address takes a round trip, too.
    fixture.node.node.enter(|| TcpStream::connect(pod).map(drop).context("find the pod's link-layer address"))?;
    fixture.mentions(&["the path is slow"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The kubelet opens a connection for each redirect, and stops after ten answers.
fn redirect_loop(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("redirect", HTTP)?;
    (1..10).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    let looped = fixture.verdict(Cause::ProbeMisconfigured);
    fixture.attempt(Kind::Http, pod, Ending::Ok, looped)
}

/// The redirect leads to a port where nothing listens.
fn redirect_dead(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("redirect", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.fails(Kind::Http, SocketAddr::new(pod.ip(), UNPROBED), Ending::Refused)
}

/// Two probes of a pod fire at once: one is redirected to another host, the other one asks a port without a listener.
fn beside_redirect(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("redirect", HTTP)?;
    let closed = SocketAddr::new(pod.ip(), UNPROBED);
    fixture.fails(Kind::Http, closed, Ending::Refused)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.fails(Kind::Http, closed, Ending::Refused)
}

/// The probe's host is a loopback address. The kubelet asks the node, and the process in the pod is never asked.
fn loopback_host(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.mentions(&["the loopback address of the node", "listens on port 9191 in the pod"]);
    let local = (Ipv4Addr::LOCALHOST, LOOPBACK_HOST).into();
    let pod = fixture.pod(LOOPBACK_HOST)?;
    (fixture.watch)()?;
    fixture.serve(pod, "http", &format!("[::]:{LOOPBACK_HOST}"))?;
    (0..3).try_for_each(|_| fixture.fails(Kind::Http, local, Ending::Refused))
}

/// The same, and a process of the node answers.
fn answered_on_loopback(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.mentions(&["a process of the node answered, and not pod default/pod-2"]);
    fixture.serving("http", LOOPBACK_HOST)?;
    fixture.node.serve(fixture.options, &["503", &format!("127.0.0.1:{LOOPBACK_HOST}")])?;
    let local = (Ipv4Addr::LOCALHOST, LOOPBACK_HOST).into();
    (0..2).try_for_each(|_| fixture.fails(Kind::Http, local, Ending::Status))
}

/// A pod that listens on the same port ends. It does not change what is known of this pod's port.
fn other_pod_ends(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http-once", HTTP)?, fixture.serving("http", HTTP)?);
    fixture.succeeds(Kind::Http, other)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.pod_of(other)?.stop();
    fixture.fails(Kind::Http, pod, Ending::Eof)
}

/// A tcpSocket probe of a server that sends a 503 without a request: on a port with known probes, and on another port.
fn unavailable_source(fixture: &mut Fixture<'_>) -> Result<()> {
    for port in [HTTP, UNPROBED] {
        let pod = fixture.serving("greet-503", port)?;
        fixture.attempt(Kind::Tcp, pod, Ending::Ok, Claim::Perhaps(Cause::TcpProbeNoise))?;
    }
    Ok(())
}

/// A tcpSocket probe of a server that closes each connection at once. The prober is late, so the FIN comes first.
fn closes_at_accept(fixture: &mut Fixture<'_>) -> Result<()> {
    for port in [HTTP, UNLISTED_TLS] {
        let pod = fixture.serving("eof-at-accept", port)?;
        let probe = ProbeRequest::new(Kind::Tcp, pod, fixture.options.patience);
        fixture.request(ProbeRequest { idle_ms: 200, ..probe }, &[Ending::Ok], Claim::Nothing)?;
    }
    Ok(())
}

/// A proxy without its upstream closes each connection at once. The FIN comes before the request, and a RST after it.
fn closed_before_request(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("eof-at-accept", HTTP)?;
    fixture.mentions(&["before it took the request"]);
    fails_with_late_request(fixture, pod, &[Ending::Eof, Ending::Reset])
}

/// The prober connects, and sends its request a moment later. The attempt must end in one of these ways.
fn fails_with_late_request(fixture: &mut Fixture<'_>, pod: SocketAddr, how: &[Ending]) -> Result<()> {
    let probe = ProbeRequest::new(Kind::Http, pod, fixture.options.patience);
    let claim = fixture.expected_verdict()?;
    fixture.request(ProbeRequest { idle_ms: 200, ..probe }, how, claim)
}

/// A mail server. Its greeting comes before the request.
fn speaks_first(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("banner", HTTP)?;
    fixture.mentions(&["the server speaks first"]);
    fails_with_late_request(fixture, pod, &[Ending::Eof])
}

fn appliance(fixture: &mut Fixture<'_>, mode: &str) -> Result<SocketAddr> {
    let pod = fixture.node.bare_pod()?;
    let addr = pod.addr(Family::V4, HTTP);
    pod.serve(fixture.options, &[mode, "eth0", &addr.ip().to_string()]).context("start the appliance")?;
    Ok(addr)
}
