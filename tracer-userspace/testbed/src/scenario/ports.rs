//! No free source port, and failures that look like it.

use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context, Result, bail};
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use tracer_model::record::{Body, Cause};
use tracer_node::netlink::Netlink;

use super::{Fixture, Need, Scenario};
use crate::helper::Role;
use crate::ip::Route;
use crate::net::Netns;
use crate::node::{BRIDGE, BRIDGE6, Family};
use crate::pods::{HOST, HTTP};
use crate::probe::{Ending, Kind};
use crate::proc::Proc;
use crate::server::CONNECTED;
use crate::wait::until;

const EXHAUSTED: Option<Cause> = Some(Cause::EphemeralPortsExhausted);
const ROUTE: Option<Cause> = Some(Cause::RouteUnreachable);

/// Two even and two odd ports.
const RANGE: &str = "40000 40003";

pub(super) const ALL: &[Scenario] = &[
    // A process of the node has closed so many connections to the pod that each port is in TIME_WAIT.
    Scenario::probed("ephemeral_ports_exhausted", EXHAUSTED, "http", Ending::Error)
        .succeeds_first()
        .fault(churn)
        .names(&["no source port of 40000 to 40003 is free", "churner"])
        .own()
        .on_every_kernel()
        .and_v6(),
    Scenario::new("ephemeral_ports_held_by_listener", EXHAUSTED, listener).own(),
    Scenario::new("ephemeral_ports_no_source_address", ROUTE, no_address).own().v6(),
    Scenario::new("port_taken", Some(Cause::PortTaken), taken_by_client).own().on_every_kernel().and_v6(),
    Scenario::new("port_taken_time_wait", Some(Cause::ConnectionRefused), client_in_time_wait).own(),
    Scenario::new("ephemeral_ports_other_destination", None, other_destination).own(),
    Scenario::new("healthy_self_connect", None, |s| self_connect(s, Kind::Tcp, Ending::Ok)).own(),
    Scenario::new("connection_refused_self_connect", Some(Cause::ConnectionRefused), |s| {
        self_connect(s, Kind::Http, Ending::Error)
    })
    .own()
    .and_v6(),
    Scenario::new("unexplained_conntrack_flushed", Some(Cause::Unexplained), conntrack_flushed)
        .own()
        .needs(&[Need::NftNat]),
];

/// The only port belongs to a listener. `connect` cannot use it.
fn listener(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    let _holds = fixture.node.node.enter(|| TcpListener::bind("0.0.0.0:40000").context("listen on the only port"))?;
    fixture.node.set_source_port(40000)?;
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// There are free ports, but no source address.
fn no_address(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| {
        ip.remove_ipv6_addresses()?;
        ip.replace(&Route::to([0xfd00, 0x10, 0x88, 0, 0, 0, 0, 0], 64).over("cni0"))
    })?;
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// Nobody listens on the port of a hostNetwork pod, which is in the range of ephemeral ports. The prober gets it as its
/// own port, and connects to itself (RFC 9293, simultaneous open).
fn self_connect(fixture: &mut Fixture<'_>, kind: Kind, how: Ending) -> Result<()> {
    let target = fixture.address_on_node();
    fixture.node.set_source_port(HOST)?;
    match how {
        Ending::Ok => fixture.succeeds(kind, target),
        how => {
            fixture.mentions(&["the prober got that port as its own"]);
            fixture.fails(kind, target, how)
        }
    }
}

/// The source port is that of a hostPort. conntrack is flushed while the probe waits: it takes the answer for a new
/// connection to the hostPort, and the pod of that resets it. The prober sees nothing of that.
fn conntrack_flushed(fixture: &mut Fixture<'_>) -> Result<()> {
    const PORT: u16 = 40_123;
    /// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE` (linux/netfilter/nfnetlink_conntrack.h).
    const DELETE: u16 = (1 << 8) | 2;
    let timeout = fixture.options.probe_timeout;
    let pod = fixture.serving(&format!("slow-big:{}", (timeout / 3).as_millis()), HTTP)?;
    let other = fixture.serving("http", HTTP)?;
    fixture.node.node.sysctl(&[("ipv4/ip_forward", "1")])?;
    fixture.node.node.nft(&format!(
        "table ip ports {{ chain pre {{ type nat hook prerouting priority dstnat; fib daddr type local tcp dport {PORT} dnat to {other}; }}; \
         chain post {{ type nat hook postrouting priority srcnat; ct status dnat masquerade; }}; }}\n"
    ))?;
    fixture.node.set_source_port(PORT)?;
    fixture.mentions(&["the target had no socket of this connection any more"]);
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |fixture| {
        fixture.wait_for_request(pod)?;
        let flush = || Ok(Netlink::open(NETLINK_NETFILTER)?.change(DELETE, 0, &[0; 4])?);
        fixture.node.node.enter(flush)
    })
}

/// Each port is in use for one destination, but free for another.
fn other_destination(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http", HTTP)?, fixture.serving("http", HTTP)?);
    (fixture.watch)()?;
    churn(fixture, pod)?;
    fixture.succeeds(Kind::Http, other)
}

/// Before the pod's server started, the pod's own client got its port as a source port.
fn taken_by_client(fixture: &mut Fixture<'_>) -> Result<()> {
    let (index, pod, node) = prepare_for_client(fixture)?;
    (fixture.watch)()?;
    let inside = &fixture.node.pod_at(index)?.ns;
    let mut command = fixture.options.helper(inside, Role::Pod)?;
    command.args(["client", &node.to_string()]);
    let client = Proc::spawn(command)?;
    let line = client.line(fixture.options.patience)?;
    if line != CONNECTED {
        bail!("the client reports {line:?}, not {CONNECTED:?}");
    }
    if bind_server(inside, pod)? != Err(Errno::EADDRINUSE) {
        bail!("bind() does not fail with EADDRINUSE beside the client");
    }
    fixture.mentions(&[&format!("pod (pid {}) to {node}", client.pid()), "bind() would fail"]);
    fixture.helpers.push(client);
    // The first verdict is `connection_refused`. tracer revises it after it has inspected the port.
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    let came = (fixture.wait_for)(&mut |records| {
        records.iter().any(|it| matches!(&it.body, Body::Verdict(v) if v.verdict.cause == Cause::PortTaken))
    });
    if !came {
        bail!("the first refusal is never revised");
    }
    fixture.fails(Kind::Http, pod, Ending::Refused)
}

/// The client has closed its connection, and the port is in TIME_WAIT. With SO_REUSEADDR a server can bind to it.
fn client_in_time_wait(fixture: &mut Fixture<'_>) -> Result<()> {
    let (index, pod, node) = prepare_for_client(fixture)?;
    (fixture.watch)()?;
    let inside = &fixture.node.pod_at(index)?.ns;
    inside.enter(|| {
        let client = reuseaddr_socket(node)?;
        connect(client.as_raw_fd(), &SockaddrStorage::from(node))?;
        let mut connection = TcpStream::from(client);
        connection.shutdown(Shutdown::Write)?;
        // The server's FIN after ours.
        connection.read_to_end(&mut Vec::new()).with_context(|| format!("the end of a connection to {node}")).map(drop)
    })?;
    (0..2).try_for_each(|_| fixture.fails(Kind::Http, pod, Ending::Refused))?;
    bind_server(&fixture.node.pod_at(index)?.ns, pod)?.context("bind() after the client has closed")
}

/// Binds a socket with SO_REUSEADDR, as most servers do, and returns the result.
fn bind_server(inside: &Netns, pod: SocketAddr) -> Result<nix::Result<()>> {
    inside.enter(|| Ok(bind(reuseaddr_socket(pod)?.as_raw_fd(), &SockaddrStorage::from(pod))))
}

fn reuseaddr_socket(address: SocketAddr) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let made = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&made, sockopt::ReuseAddr, &true)?;
    Ok(made)
}

/// Adds a pod without a server, and a server on the node. A client in the pod can get only the port of the pod's server
/// as its source port. Returns the pod's index, the address of its server, and that of the node's server.
fn prepare_for_client(fixture: &mut Fixture<'_>) -> Result<(u16, SocketAddr, SocketAddr)> {
    let family = fixture.family;
    let node = match family {
        Family::V4 => SocketAddr::from((BRIDGE, HOST)),
        Family::V6 => SocketAddr::from((BRIDGE6, HOST)),
    };
    fixture.node.serve(fixture.options, &["eof", &node.to_string()])?;
    let pod = fixture.node.pod()?;
    pod.ns.sysctl(&[("ipv4/ip_local_port_range", &format!("{HTTP} {HTTP}"))])?;
    Ok((pod.index, pod.addr(family, HTTP), node))
}

/// Leaves every port of a small range in TIME_WAIT for this destination.
fn churn(fixture: &mut Fixture<'_>, dst: SocketAddr) -> Result<()> {
    let node = &fixture.node.node;
    node.sysctl(&[("ipv4/ip_local_port_range", RANGE), ("ipv4/tcp_tw_reuse", "0")])?;
    until(&format!("source ports for {dst} are used up"), || {
        let mut command = fixture.options.helper(node, Role::Load)?;
        command.args(["--comm", "churner", "--seconds", "0.3", "--target", &dst.to_string()]);
        Proc::spawn(command)?.finish(fixture.options.patience)?;
        node.enter(|| Ok(TcpStream::connect(dst).is_err()))
    })
}
