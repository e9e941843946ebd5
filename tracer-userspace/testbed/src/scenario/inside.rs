//! The pod's own connections, and its own address translation.

use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, SockaddrStorage, connect, shutdown, socket};
use tracer_model::record::{Cause, Outcome};

use super::fixture::NODE_MAC;
use super::service::cluster_ip;
use super::{Fixture, Need, Scenario};
use crate::check::{Attempt, Claim, Expected, unmet};
use crate::options::is_emulated;
use crate::pods::HTTP;
use crate::probe::{Ending, Kind, ProbeRequest};
use crate::wait::until;

const DEPENDENCY: Cause = Cause::DependencyUnreachable;
const REDIRECT: Option<Cause> = Some(Cause::MeshRedirect);
const BAD_STATUS: Option<Cause> = Some(Cause::AppStatusFailure);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("dependency_unreachable", BAD_STATUS, |s| depends(s, "503", Ending::Status))
        .also(DEPENDENCY)
        .needs(&[Need::Nft])
        .on_every_kernel(),
    Scenario::new("dependency_unreachable_hangs", Some(Cause::SlowResponse), |s| depends(s, "hang", Ending::Timeout))
        .also(DEPENDENCY)
        .needs(&[Need::Nft]),
    Scenario::new("dependency_unreachable_refused", Some(Cause::ConnectionRefused), depends_and_waits)
        .also(DEPENDENCY)
        .needs(&[Need::Nft]),
    Scenario::new("dependency_unreachable_rejected", BAD_STATUS, depends_on_closed_port).also(DEPENDENCY),
    Scenario::new("dependency_unreachable_no_endpoints", BAD_STATUS, depends_on_empty_service)
        .also(DEPENDENCY)
        .own()
        .needs(&[Need::Nft])
        .on_every_kernel(),
    Scenario::new("dependency_unreachable_beside_agent", BAD_STATUS, depends_beside_dead_agent)
        .also(DEPENDENCY)
        .needs(&[Need::Nft]),
    Scenario::new("app_status_failure_connected", BAD_STATUS, connected),
    Scenario::new("mesh_redirect", REDIRECT, |s| redirected(s, "rst", Ending::Reset))
        .needs(&[Need::NftNat])
        .on_every_kernel()
        .and_v6(),
    Scenario::new("mesh_redirect_outside", REDIRECT, ambient).needs(&[Need::NftNat]),
    Scenario::new("slow_response_mesh", Some(Cause::SlowResponse), silent_proxy).needs(&[Need::NftNat]),
    // A rule of the node sends the probe to another pod, which is silent, or answers with a failure.
    Scenario::probed("slow_response_node_nat", Some(Cause::SlowResponse), "http", Ending::Timeout)
        .fault(|s, pod| s.serving("hang", HTTP).and_then(|other| steer(s, pod, other)))
        .names(&["no socket of the target's network namespace has this connection"])
        .needs(&[Need::NftNat]),
    Scenario::new("connection_refused_steered", Some(Cause::ConnectionRefused), refused_by_another)
        .own()
        .needs(&[Need::NftNat]),
    Scenario::new("handshake_rst_translated", Some(Cause::HandshakeRst), refused_out_of_sight).needs(&[Need::NftNat]),
    Scenario::new("mesh_redirect_closed", REDIRECT, |s| redirected(s, "eof", Ending::Eof)).needs(&[Need::NftNat]),
    Scenario::new("app_status_failure_redirected", BAD_STATUS, answered_by_proxy).needs(&[Need::NftNat]),
    Scenario::probed("app_status_failure_steered", BAD_STATUS, "http", Ending::Status)
        .fault(|s, pod| s.serving("503", HTTP).and_then(|other| steer(s, pod, other)))
        .names(&["accepted the connection, and not pod", "the node's own address translation sent it to"])
        .own()
        .needs(&[Need::NftNat]),
    Scenario::new("app_status_failure_two_pods_v6", BAD_STATUS, two_pods).own().v6(),
    Scenario::new("mid_stream_rst_another_redirect", Some(Cause::MidStreamRst), another_redirect)
        .needs(&[Need::NftNat]),
    Scenario::new("mid_stream_rst_own_redirect", Some(Cause::MidStreamRst), own_redirect).needs(&[Need::NftNat]),
    Scenario::new("probe_proves_nothing", Some(Cause::ProbeProvesNothing), proves_nothing)
        .needs(&[Need::NftNat])
        .on_every_kernel(),
    Scenario::new("healthy_own_redirect", None, healthy_redirect).needs(&[Need::NftNat]),
];

/// The peer that the pod depends on.
const PEER: SocketAddrV4 = SocketAddrV4::new(std::net::Ipv4Addr::new(10, 96, 0, 1), 443);
/// Where a mesh's proxy listens.
pub(super) const PROXY: u16 = 15006;

/// Waits until the tracer has inspected the sockets of the pod. It emits no record then, so this is a fixed time.
///
/// An inspection takes milliseconds, but most of a second on a busy machine, and several seconds on an emulated one.
fn wait_for_inspection(fixture: &Fixture<'_>) {
    let times = if is_emulated() { 4 } else { 1 };
    thread::sleep(times * fixture.options.probe_timeout);
}

/// Makes an attempt fail before the tracer has inspected the pod, and after that.
fn fails_twice(fixture: &mut Fixture<'_>, pod: SocketAddr, how: Ending) -> Result<()> {
    fixture.fails(Kind::Http, pod, how)?;
    wait_for_inspection(fixture);
    fixture.fails(Kind::Http, pod, how)
}

/// Repeats an attempt until one gets this verdict, because the tracer has inspected the sockets of the pod.
fn attempt_until_inspected(
    fixture: &mut Fixture<'_>,
    kind: Kind,
    pod: SocketAddr,
    how: Ending,
    due: &Claim,
) -> Result<()> {
    let (began, mut attempts) = (Instant::now(), Vec::new());
    loop {
        thread::sleep(fixture.options.probe_timeout / 5);
        let attempt = fixture.begin(pod, due.clone())?;
        let outcome = fixture.prober.probe(ProbeRequest::new(kind, pod, fixture.options.probe_timeout))?;
        attempts.push((Attempt { src: outcome.src, ..attempt }, outcome));
        let mut met = Some(attempts.len() - 1);
        (fixture.wait_for)(&mut |records| {
            met = attempts.iter().position(|(attempt, _)| unmet(records, attempt).is_none());
            true
        });
        if met.is_some() || began.elapsed() > fixture.options.patience {
            let (attempt, outcome) = attempts.swap_remove(met.unwrap_or(attempts.len() - 1));
            return fixture.end(attempt, &outcome, &[how]);
        }
    }
}

/// Repeats a failing attempt until one gets the scenario's cause.
fn fails_after_inspection(fixture: &mut Fixture<'_>, pod: SocketAddr, how: Ending) -> Result<()> {
    let due = fixture.expected_verdict()?;
    attempt_until_inspected(fixture, Kind::Http, pod, how, &due)
}

/// Lets the pod connect to its peer while an egress policy drops that. Waits until the second SYN was dropped.
fn connect_to_peer(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<OwnedFd> {
    let inside = fixture.inside(pod)?;
    let chain = format!("type filter hook output priority 0; ip daddr {} counter drop;", PEER.ip());
    inside.nft(&format!("table inet guard {{ chain egress {{ {chain} }}; }}\n"))?;
    let dialling = inside.enter(|| send_syn(PEER.into()))?;
    let list = || inside.run("nft", &["list", "table", "inet", "guard"], "");
    until("the SYN was dropped twice", || {
        let list = list()?;
        Ok(!["packets 0 ", "packets 1 "].iter().any(|few| list.contains(few)))
    })?;
    Ok(dialling)
}

/// Makes attempts fail until a verdict names the peer that the pod waits for.
fn fails_without_peer(fixture: &mut Fixture<'_>, pod: SocketAddr, how: Ending) -> Result<()> {
    let _connecting = connect_to_peer(fixture, pod)?;
    // A verdict on an answer waits half a second for the reading that shows the connect: too short if it is emulated.
    if how != Ending::Status || !is_emulated() {
        fixture.also = (how == Ending::Status).then_some(DEPENDENCY);
        fixture.fails(Kind::Http, pod, how)?;
        fixture.also = Some(DEPENDENCY);
    }
    fixture.mentions(&["perhaps because the pod itself gets no answer from 10.96.0.1:443"]);
    fails_after_inspection(fixture, pod, how)
}

fn depends(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let pod = fixture.serving(mode, HTTP)?;
    fails_without_peer(fixture, pod, how)
}

/// The process listens only after its peer answers. It listened before, so `not_listening_yet` would be wrong.
fn depends_and_waits(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.pod_of(pod)?.stop();
    fails_without_peer(fixture, pod, Ending::Refused)
}

/// The pod's own connects are refused at once, since nobody listens at its peer.
fn depends_on_closed_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let peer = SocketAddr::new(fixture.serving("http", HTTP)?.ip(), 5432);
    let pod = fixture.serving("503", HTTP)?;
    let _connecting = fixture.inside(pod)?.enter(|| Ok(connect_repeatedly(peer)))?;
    fixture.mentions(&["perhaps because the pod's own connects to 10.88.0.", ":5432 fail: Connection refused"]);
    fails_after_inspection(fixture, pod, Ending::Status)
}

/// The pod's own connects are rejected on the node, as those to a Service without endpoints. The ICMP error comes while
/// connect(2) holds the socket.
fn depends_on_empty_service(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("503", HTTP)?;
    let service = cluster_ip(fixture)?;
    fixture.node.node.nft(&format!(
        "table ip proxy {{ chain forward {{ type filter hook forward priority 0; ip daddr {} reject; }}; }}\n",
        service.ip()
    ))?;
    let _connecting = fixture.inside(pod)?.enter(|| Ok(connect_repeatedly(service)))?;
    fixture.mentions(&[&format!("perhaps because the pod's own connects to {service}"), "fail: Connection refused"]);
    fails_after_inspection(fixture, pod, Ending::Status)
}

/// The same, beside a peer that does not answer. The many refused connects must not hide that one.
fn depends_beside_dead_agent(fixture: &mut Fixture<'_>) -> Result<()> {
    let agent = SocketAddr::new(fixture.serving("http", HTTP)?.ip(), 9125);
    let pod = fixture.serving("503", HTTP)?;
    let _connecting = fixture.inside(pod)?.enter(|| Ok(connect_repeatedly(agent)))?;
    let _silent = connect_to_peer(fixture, pod)?;
    fixture.mentions(&[
        "the pod's own connects fail: to 10.88.0.",
        ":9125: Connection refused",
        "10.96.0.1:443: no answer",
    ]);
    fails_after_inspection(fixture, pod, Ending::Status)
}

/// Connects in the calling thread's namespace until the result is dropped.
fn connect_repeatedly(peer: SocketAddr) -> Sender<()> {
    let (stop, stopped) = mpsc::channel();
    thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            let _ = TcpStream::connect(peer);
        }
    });
    stop
}

/// The pod answers 503, but its own peer has answered. The verdict must not blame a dependency.
fn connected(fixture: &mut Fixture<'_>) -> Result<()> {
    let peer = fixture.serving("hang", HTTP)?;
    let pod = fixture.serving("503", HTTP)?;
    let _connected = fixture.inside(pod)?.enter(|| TcpStream::connect(peer).context("the pod's own peer"))?;
    fails_twice(fixture, pod, Ending::Status)
}

/// Redirects connections to this port to the proxy.
pub(super) fn redirect(fixture: &mut Fixture<'_>, pod: SocketAddr, port: u16) -> Result<()> {
    let chain = format!("type nat hook prerouting priority -100; tcp dport {port} redirect to :{PROXY};");
    let family = if pod.is_ipv4() { "ip" } else { "ip6" };
    fixture.inside(pod)?.nft(&format!("table {family} mesh {{ chain inbound {{ {chain} }}; }}\n"))
}

/// Sends a SYN, and does not wait for the answer.
pub(super) fn send_syn(dst: SocketAddr) -> Result<OwnedFd> {
    let family = if dst.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(dst)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(fd),
        Err(errno) => Err(errno).context("begin a connection"),
    }
}

/// Adds a pod with a healthy application, and a proxy of this mode that gets its probes.
pub(super) fn meshed(fixture: &mut Fixture<'_>, mode: &str) -> Result<SocketAddr> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.serve(pod, mode, &format!("[::]:{PROXY}"))?;
    redirect(fixture, pod, HTTP)?;
    Ok(pod)
}

/// The proxy closes the connection, as one that accepts mutual TLS only. tracer may decide the first attempt before or
/// after it has inspected the sockets.
fn redirected(fixture: &mut Fixture<'_>, mode: &str, how: Ending) -> Result<()> {
    let pod = meshed(fixture, mode)?;
    fixture.mentions(&[":15006 ", ": the pod's own address translation sends "]);
    fails_after_inspection(fixture, pod, how)
}

/// As Istio's ztunnel: the listener is in the pod's namespace, and its process is not.
fn ambient(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    redirect(fixture, pod, HTTP)?;
    let listener = fixture.inside(pod)?.enter(|| TcpListener::bind(("::", PROXY)).context("the proxy's listener"))?;
    // Closes with unread data, which the kernel answers with a RST.
    let close = |client: TcpStream| client.peek(&mut [0]).map(drop);
    thread::scope(|scope| {
        scope.spawn(|| listener.incoming().map_while(Result::ok).map(close).for_each(drop));
        fixture.mentions(&["(a process of another network namespace)", ": the pod's own address translation sends "]);
        let outcome = fails_after_inspection(fixture, pod, Ending::Reset);
        // Ends the thread.
        shutdown(listener.as_raw_fd(), Shutdown::Both)?;
        outcome
    })
}

fn answered_by_proxy(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = meshed(fixture, "503")?;
    fixture.fails(Kind::Http, pod, Ending::Status)?;
    fixture.mentions(&[":15006 answered", "may not have got the request"]);
    fails_after_inspection(fixture, pod, Ending::Status)
}

/// The proxy takes the request and is silent. The application would answer.
fn silent_proxy(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = meshed(fixture, "hang")?;
    fixture.mentions(&["no socket of the target's network namespace has this connection"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)?;
    wait_for_inspection(fixture);
    fixture.mentions(&[":15006 took it: the pod's own address translation sends that port to it"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// Another pod has the address, too, and the node's neighbour entry leads to it.
fn two_pods(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http", HTTP)?, fixture.serving("503", HTTP)?);
    fixture.inside(other)?.ip(|ip| {
        ip.set_mac("eth0", NODE_MAC)?;
        ip.address(pod.ip(), 128, "eth0")
    })?;
    fixture.node.node.ip(|ip| {
        ip.forget_neighbours("cni0")?;
        ip.neighbour(pod.ip(), NODE_MAC, "cni0")
    })?;
    fixture.mentions(&["both have", "either may be the one that was reached"]);
    fixture.fails(Kind::Http, pod, Ending::Status)
}

/// The node sends what is for `pod` to `other`.
fn steer(fixture: &Fixture<'_>, pod: SocketAddr, other: SocketAddr) -> Result<()> {
    let chain = format!("type nat hook output priority -100; ip daddr {} tcp dport {HTTP} dnat to {other};", pod.ip());
    fixture.node.node.nft(&format!("table ip steer {{ chain out {{ {chain} }}; }}\n"))
}

/// A rule of the node sends the probe to another pod, where nobody listens.
fn refused_by_another(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http", HTTP)?, fixture.pod(HTTP)?);
    steer(fixture, pod, other)?;
    fixture.mentions(&[&format!("nobody listens on {other}"), &format!("where an address translation sends {pod}")]);
    fixture.fails(Kind::Http, pod, Ending::Refused)
}

/// The same behind a masquerade, so no hook ties the RST to the attempt. The other pod answers with a failure before it
/// ends: conntrack keeps nothing of a refused attempt.
fn refused_out_of_sight(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http", HTTP)?, fixture.serving("503", HTTP)?);
    steer(fixture, pod, other)?;
    let chain = format!("type nat hook postrouting priority 100; ip daddr {} snat to 169.254.7.127;", other.ip());
    fixture.node.node.nft(&format!("table ip steer {{ chain post {{ {chain} }}; }}\n"))?;
    fixture.mentions(&["the node's own address translation sent it to"]);
    let due = fixture.verdict(Cause::AppStatusFailure);
    attempt_until_inspected(fixture, Kind::Http, pod, Ending::Status, &due)?;
    fixture.pod_of(other)?.stop();
    fixture.mentions(&["an address translation on the node sends", "most likely nobody listens there"]);
    fixture.fails(Kind::Http, pod, Ending::Refused)
}

/// The redirect to the proxy is for another port.
fn another_redirect(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("rst", HTTP)?;
    fixture.serve(pod, "http", &format!("[::]:{PROXY}"))?;
    redirect(fixture, pod, HTTP + 1)?;
    fails_twice(fixture, pod, Ending::Reset)
}

/// The application listens on another port, and a redirect in the pod leads to it.
fn translates_itself(fixture: &mut Fixture<'_>, mode: &str) -> Result<SocketAddr> {
    let at = fixture.serving(mode, PROXY)?;
    redirect(fixture, at, HTTP)?;
    Ok(SocketAddr::new(at.ip(), HTTP))
}

fn own_redirect(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = translates_itself(fixture, "rst")?;
    fails_twice(fixture, pod, Ending::Reset)
}

fn healthy_redirect(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = translates_itself(fixture, "http")?;
    fixture.succeeds(Kind::Tcp, pod)?;
    wait_for_inspection(fixture);
    fixture.succeeds(Kind::Tcp, pod)
}

fn proves_nothing(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = meshed(fixture, "http")?;
    fixture.mentions(&["proves nothing", ":15006, past "]);
    let noise = Expected { outcome: Outcome::Noise, ..Expected::failure(Cause::ProbeProvesNothing, true) };
    attempt_until_inspected(fixture, Kind::Tcp, pod, Ending::Ok, &Claim::Verdict(noise))
}
