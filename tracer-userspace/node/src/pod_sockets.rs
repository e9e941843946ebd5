//! Reads the sockets of a pod after an attempt to it: the pod's own connects that get no answer, and where address
//! translation in the pod redirected the attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use netlink_packet_core::NLA_F_NESTED;
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::net::if_::if_indextoname;

use super::enter::in_netns;
use super::namespaces::{Namespaces, Owner, Place, max_age};
use super::netlink::{Netlink, address, attribute, family, field, octets, push};
use super::procfs::{every_pid, netns_of, pod_of_process, read_text};
use super::servers::{OF_NODE, OF_POD, comm, holder_of, holders};
use super::settings::sysctl;
use super::sock_diag::{LISTEN, TcpSocket, dump};
use super::{addresses, cgroup, policy};
use tracer_model::event::{
    AcceptingProcess, Acceptor, Listener, ListenerAt, MOST_ELSEWHERE, MOST_UNANSWERED, Netns, PodSockets, Redirect,
    UnansweredConnect,
};
use tracer_model::query::{Awaited, TargetQuery};

/// The sockets that each process holds, by pid.
type Held = BTreeMap<u32, BTreeSet<u64>>;

const SYN_SENT: u32 = 1 << 2;

/// How many cgroups may share the listeners of a target: one does, or two with SO_REUSEPORT.
const MOST_CGROUPS: usize = 4;

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
const IPCTNL_MSG_CT_GET: u16 = 1;
/// `struct nfgenmsg`
const NFGENMSG: usize = 4;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

/// Reads the sockets of the target's pod, if one was found. The processes of the node's own network are those of many
/// pods: of them tracer reads only who accepts, and if nobody does, where the processes of the probed pod listen.
pub fn read(query: &TargetQuery, from: &Place, namespaces: &mut Namespaces) -> PodSockets {
    // No other namespace is asked for an address of the prober's own. A packet to it has it as its source, too.
    let is_own = query.peer.is_some_and(|peer| peer.ip() == query.target.ip());
    let found = match if is_own { Owner::Nobody } else { namespaces.owner(query, from) } {
        Owner::One(netns, path) => read_in(query, from, Place { netns, path }, namespaces),
        Owner::Unsure | Owner::Nobody => None,
    };
    let (found, is_known) = found.map_or((None, true), |(found, is_known)| (Some(found), is_known));
    // A proxy to which the pod's own address translation leads is in `redirect`.
    let is_redirected = found.as_ref().is_some_and(|it| it.redirect.is_some());
    let holders = if is_own { Vec::new() } else { namespaces.several_holders(query, from) };
    let peer = query.peer.filter(|_| is_known && !is_redirected);
    let acceptor = peer.and_then(|peer| acceptor(query, peer, from, namespaces, !holders.is_empty()));
    let netns = found.as_ref().and_then(|it| it.netns).or(acceptor.as_ref().map(|it| it.netns));
    let netns = netns.or(holders.first().copied());
    let is_translated = acceptor.as_ref().is_none_or(|it| it.to.is_some());
    let found = if is_own && !is_translated { read_of_pod_on_node(query, from, namespaces) } else { found };
    PodSockets {
        peer: query.peer,
        acceptor,
        holders,
        ..found.unwrap_or_else(|| PodSockets::nothing(from.netns, query.target, netns))
    }
}

/// Where the processes of the probed pod on the node's network listen, if nobody listens on the target.
fn read_of_pod_on_node(query: &TargetQuery, from: &Place, namespaces: &mut Namespaces) -> Option<PodSockets> {
    let (pod, netns) = (query.pod.as_ref()?, from.netns);
    let target = query.target;
    let read = || {
        let accepts = accepting_over_any(&listening(target));
        (accepts, if accepts.is_none() { other_listeners(target).unwrap_or_default() } else { Vec::new() })
    };
    let (accepts, found) = from.enter(read).ok()?;
    let is_of_pod = |pid: &u32| pod_of_process(*pid).is_some_and(|it| it.uid == *pod);
    let own: Vec<u32> = namespaces.pids(netns, max_age(query.awaited)).iter().copied().filter(is_of_pod).collect();
    let elsewhere = held_by(found, &own, netns);
    Some(PodSockets { accepts, elsewhere, pod: Some(pod.clone()), ..PodSockets::nothing(netns, target, Some(netns)) })
}

/// Those of these listeners that one of these processes holds, [`MOST_ELSEWHERE`] at most.
fn held_by(listeners: Vec<(TcpSocket, Option<String>)>, pids: &[u32], netns: Netns) -> Vec<ListenerAt> {
    let held = holders(&listeners.iter().map(|(socket, _)| socket.inode).collect(), pids, netns, &OF_NODE).held;
    let found = listeners.into_iter().filter_map(|(socket, device)| {
        let pid = *held.iter().find(|(_, held)| held.contains(&socket.inode))?.0;
        let container = pod_of_process(pid).and_then(|it| it.container);
        Some(ListenerAt { addr: socket.local, device, server: Listener { pid, comm: comm(pid)? }, container })
    });
    found.take(MOST_ELSEWHERE).collect()
}

/// The same of all processes in the namespace, and whether a listener on `port` is missing: a process of another namespace
/// may hold it. If nobody holds a listener on `port` by a search that is `ago` old, tracer searches again: a process that
/// began to listen a moment ago may be missing in it.
fn held_by_anyone(
    listeners: Vec<(TcpSocket, Option<String>)>,
    port: u16,
    ago: Duration,
    netns: Netns,
    namespaces: &mut Namespaces,
) -> (Vec<ListenerAt>, bool) {
    let wanted = listeners.iter().filter(|(it, _)| it.local.port() == port).count();
    if listeners.is_empty() {
        return (Vec::new(), false);
    }
    let held = |found: &[ListenerAt]| found.iter().filter(|it| it.addr.port() == port).count();
    let mut find = |ago| held_by(listeners.clone(), namespaces.pids(netns, ago), netns);
    let found = find(ago);
    let found = if held(&found) < wanted.min(MOST_ELSEWHERE) { find(Duration::ZERO) } else { found };
    let is_missing = held(&found) < wanted;
    (found, is_missing)
}

/// Finds who accepts the connection from `peer`, as the prober's namespace sends it. `is_shared`: several namespaces have
/// the target's address. `None`: that is not known.
fn acceptor(
    query: &TargetQuery,
    peer: SocketAddr,
    from: &Place,
    namespaces: &mut Namespaces,
    is_shared: bool,
) -> Option<Acceptor> {
    let (to, is_local) = from
        .enter(|| {
            let to = redirected(query.target, peer).ok()?;
            let at = to.unwrap_or(query.target).ip();
            // A packet to the namespace's own address has the same address as its source. With a local route, no link
            // needs to have the address, and the source may be another one.
            let is_kept = || {
                policy::route(peer, SocketAddr::new(at, query.target.port()))
                    .is_ok_and(|it| it.is_some_and(|it| it.is_local))
            };
            Some((to, at.is_loopback() || at == peer.ip() || addresses::has(at).ok()? || is_kept()))
        })
        .ok()??;
    let target = to.unwrap_or(query.target);
    let reported = query.reported.filter(|_| to.is_none_or(|to| to.ip() == query.target.ip()));
    let (at, most) = match is_local {
        true => (from.clone(), &OF_NODE),
        false if is_shared && to.is_none() => return None,
        false => match namespaces.owner(&TargetQuery { target, reported, ..query.clone() }, from) {
            Owner::One(netns, path) => (Place { netns, path }, &OF_POD),
            Owner::Unsure | Owner::Nobody => return None,
        },
    };
    let over_any_device = |it: &TcpSocket| (it.device == 0).then_some(it.inode);
    let sockets: BTreeSet<u64> = at.enter(|| listening(target).iter().filter_map(over_any_device).collect()).ok()?;
    let mut find = |ago| {
        let found = holders(&sockets, namespaces.pids(at.netns, ago), at.netns, most);
        let held = |socket: &u64| found.held.values().any(|held| held.contains(socket));
        let is_whole = !found.incomplete && sockets.iter().all(held);
        is_whole.then(|| found.held.keys().map(|pid| accepting(*pid)).collect::<Option<Vec<_>>>()).flatten()
    };
    // A process that began to listen a moment ago may be missing in the older search.
    let found = find(max_age(query.awaited)).or_else(|| find(Duration::ZERO));
    // The workers of a server share its listeners.
    let mut processes = found.unwrap_or_default();
    processes.sort_by(|a, b| cgroup_key(a).cmp(&cgroup_key(b)));
    processes.dedup_by(|a, b| cgroup_key(a) == cgroup_key(b));
    if processes.len() > MOST_CGROUPS {
        processes.clear();
    }
    Some(Acceptor { to, netns: at.netns, processes })
}

fn cgroup_key(process: &AcceptingProcess) -> (Option<&str>, Option<&str>) {
    (process.pod_uid.as_deref(), process.container.as_deref())
}

fn accepting(pid: u32) -> Option<AcceptingProcess> {
    let text = read_text(format!("/proc/{pid}/cgroup")).ok()?;
    let server = Listener { pid, comm: comm(pid)? };
    let (pod_uid, container) = match cgroup::pod_process(&text) {
        Some(pod) => (Some(pod.uid), pod.container),
        None => (None, cgroup::container_of(&text)),
    };
    Some(AcceptingProcess { server, pod_uid, container })
}

/// The sockets of the pod, and whether it is known where its own address translation sends the attempt.
fn read_in(query: &TargetQuery, from: &Place, pod: Place, namespaces: &mut Namespaces) -> Option<(PodSockets, bool)> {
    let (target, Place { netns, path }) = (query.target, pod);
    let seen = query.peer.map(|peer| source_seen(target, peer, from)).transpose();
    let (unanswered, redirect, accepts, elsewhere, is_known) = in_netns(&path, || {
        let to = seen.and_then(|seen| seen.map_or(Ok(None), |peer| redirected(target, peer)));
        let passed_over = listening(target);
        let accepts = accepting_over_any(&passed_over).filter(|_| matches!(to, Ok(None)));
        let elsewhere = match to {
            Ok(None) if accepts.is_none() => other_listeners(target),
            Ok(_) => Some(Vec::new()),
            Err(_) => None,
        };
        let inodes = |all: Vec<TcpSocket>| all.iter().map(|it| it.inode).collect::<Vec<_>>();
        let is_known = to.is_ok();
        let redirect = to.ok().flatten().map(|to| (to, inodes(listening(to)), inodes(passed_over)));
        (unanswered(), redirect, accepts, elsewhere, is_known)
    })
    .ok()?;
    let find = |all| held_by_anyone(all, target.port(), max_age(query.awaited), netns, namespaces);
    let (elsewhere, incomplete) = elsewhere.map_or((Vec::new(), true), find);
    let redirect = redirect.map(|(to, server, passed_over)| {
        let sockets: BTreeSet<u64> = server.iter().chain(&passed_over).copied().collect();
        let mut find = |ago| holders(&sockets, namespaces.pids(netns, ago), netns, &OF_POD).held;
        let is_whole = |held: &Held| sockets.iter().all(|socket| held.values().any(|it| it.contains(socket)));
        // A process that began to listen a moment ago may be missing in the older search.
        let held = Some(find(max_age(query.awaited))).filter(is_whole);
        let held = held.unwrap_or_else(|| find(max_age(Awaited::Handshake)));
        let of = |sockets: &[u64]| {
            let pid = held.iter().find(|(_, held)| sockets.iter().any(|it| held.contains(it))).map(|(pid, _)| *pid)?;
            Some(Listener { pid, comm: comm(pid)? })
        };
        let (inside, passed_over) = (of(&server), of(&passed_over));
        let is_detour = inside.is_none() && passed_over.is_some();
        let outside = server.first().filter(|_| is_detour).and_then(|socket| outside(*socket, netns));
        Redirect { to, outside: outside.is_some(), server: inside.or(outside), passed_over }
    });
    let found = PodSockets {
        unanswered,
        redirect,
        accepts,
        elsewhere,
        incomplete,
        ..PodSockets::nothing(from.netns, target, Some(netns))
    };
    Some((found, is_known))
}

/// The process of another namespace that holds a socket of this one. A proxy that serves all pods of a node makes its
/// listeners in the namespaces of the pods.
fn outside(socket: u64, netns: Netns) -> Option<Listener> {
    let pids: Vec<u32> = every_pid().filter(|pid| netns_of(*pid) != Some(netns)).collect();
    let pid = holder_of(socket, &pids)?;
    Some(Listener { pid, comm: comm(pid)? })
}

/// Whether a listener accepts connections to this address, over some device.
fn accepts(listener: &TcpSocket, at: SocketAddr) -> bool {
    let ip = listener.local.ip();
    let is_for_any = || ip.is_unspecified() && (ip.is_ipv4() == at.is_ipv4() || ip.is_ipv6() && !listener.only_v6);
    ip == at.ip() || is_for_any()
}

/// The address of one of these that is bound to no device.
fn accepting_over_any(listeners: &[TcpSocket]) -> Option<SocketAddr> {
    listeners.iter().find(|it| it.device == 0).map(|it| it.local)
}

/// For how many listeners tracer searches the process. The node's network has those of many pods.
const MAX_OTHER_LISTENERS: usize = 1024;

/// The listeners of the calling thread's namespace, those on the target's port first, each with its only device. `None`:
/// they could not be read.
fn other_listeners(target: SocketAddr) -> Option<Vec<(TcpSocket, Option<String>)>> {
    let mut dumped = Ok(());
    let found = first_listeners(target, |each| dumped = dump(LISTEN, 0, each));
    dumped.ok()?;
    Some(found.into_iter().map(|it| (it, device_name(it.device))).collect())
}

/// The same of a dump, [`MAX_OTHER_LISTENERS`] at most. A pod may have a million listeners.
fn first_listeners(target: SocketAddr, dump: impl FnOnce(&mut dyn FnMut(TcpSocket))) -> Vec<TcpSocket> {
    let mut found = Vec::new();
    let cut = |found: &mut Vec<TcpSocket>| {
        found.sort_by_key(|it| (it.local.port() != target.port(), it.local));
        found.truncate(MAX_OTHER_LISTENERS);
    };
    dump(&mut |socket| {
        found.push(socket);
        if found.len() == 2 * MAX_OTHER_LISTENERS {
            cut(&mut found);
        }
    });
    cut(&mut found);
    found
}

/// The name of a device in the calling thread's namespace.
fn device_name(device: u32) -> Option<String> {
    (device != 0).then(|| if_indextoname(device).ok()?.into_string().ok()).flatten()
}

/// The listeners in the calling thread's namespace that accept connections to this address, over some device.
pub(super) fn listening(at: SocketAddr) -> Vec<TcpSocket> {
    let mut found = Vec::new();
    // An error means only that these listeners stay unknown.
    let _ = dump(LISTEN, at.port(), |socket| found.extend(accepts(&socket, at).then_some(socket)));
    found
}

/// The connects of the calling thread's namespace that retransmitted their SYN and have no answer.
fn unanswered() -> Vec<UnansweredConnect> {
    let mut by_dst = BTreeMap::<SocketAddr, (u32, u8)>::new();
    // A partial dump is good enough: no verdict depends on a missing connect.
    let _ = dump(SYN_SENT, 0, |socket| {
        if socket.retransmits > 0 {
            let (sockets, most) = by_dst.entry(socket.remote).or_default();
            *sockets = sockets.saturating_add(1);
            *most = socket.retransmits.max(*most);
        }
    });
    let connect = |(dst, (sockets, retransmits))| UnansweredConnect { dst, sockets, retransmits };
    let mut all: Vec<_> = by_dst.into_iter().map(connect).collect();
    all.sort_by_key(|it| std::cmp::Reverse((it.retransmits, it.sockets)));
    all.truncate(MOST_UNANSWERED);
    all
}

/// Where connection tracking of the calling thread's namespace redirected the connection from `peer` to `target`;
/// `None` if it did not. After an error it may have done so.
pub(super) fn redirected(target: SocketAddr, peer: SocketAddr) -> io::Result<Option<SocketAddr>> {
    Ok(replies(target, peer)?.map(|(to, _)| to).filter(|to| *to != target))
}

/// The source that the target sees of the connection from `peer`. A masquerade of the namespace `from` may change the
/// address, and the port.
pub(super) fn source_seen(target: SocketAddr, peer: SocketAddr, from: &Place) -> io::Result<SocketAddr> {
    let found = from.enter(|| replies(target, peer)).map_err(io::Error::other)?;
    Ok(found?.map_or(peer, |(_, seen)| seen))
}

/// The source and the destination of the packets that answer this connection.
fn replies(target: SocketAddr, peer: SocketAddr) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
    let kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET;
    let asked = || Netlink::open(NETLINK_NETFILTER)?.ask(kind, &request(target, peer), parse_reply);
    // Without connection tracking no address is translated, and ctnetlink may be missing, too.
    or_untracked(asked(), || sysctl("netfilter/nf_conntrack_max").is_some())
}

/// `None` if the connection is not tracked there, and so its address is not translated.
fn or_untracked<T>(asked: io::Result<Option<T>>, can_track: impl FnOnce() -> bool) -> io::Result<Option<T>> {
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(_) if !can_track() => Ok(None),
        asked => asked,
    }
}

/// Requests the conntrack entry of this tuple (`ctnetlink_get_conntrack`, net/netfilter/nf_conntrack_netlink.c).
fn request(target: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let source = if target.is_ipv4() { CTA_IP_V4_SRC } else { CTA_IP_V6_SRC };
    let (mut ip, mut proto, mut tuple) = (Vec::new(), Vec::new(), Vec::new());
    push(&mut ip, source, &octets(peer.ip()));
    push(&mut ip, source + 1, &octets(target.ip()));
    push(&mut proto, CTA_PROTO_NUM, &[libc::IPPROTO_TCP as u8]);
    push(&mut proto, CTA_PROTO_SRC_PORT, &peer.port().to_be_bytes());
    push(&mut proto, CTA_PROTO_DST_PORT, &target.port().to_be_bytes());
    push(&mut tuple, CTA_TUPLE_IP | NLA_F_NESTED, &ip);
    push(&mut tuple, CTA_TUPLE_PROTO | NLA_F_NESTED, &proto);
    let mut request = vec![family(target.ip()), 0, 0, 0];
    push(&mut request, CTA_TUPLE_ORIG | NLA_F_NESTED, &tuple);
    request
}

/// The source and the destination in the tuple of replies.
fn parse_reply(message: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let tuple = attribute(message.get(NFGENMSG..)?, CTA_TUPLE_REPLY)?;
    let ip = attribute(tuple, CTA_TUPLE_IP)?;
    let proto = attribute(tuple, CTA_TUPLE_PROTO)?;
    // The attributes of the destination follow those of the source.
    let end = |next: u16| {
        let addr = attribute(ip, CTA_IP_V4_SRC + next).or_else(|| attribute(ip, CTA_IP_V6_SRC + next));
        let port = attribute(proto, CTA_PROTO_SRC_PORT + next)?;
        Some(SocketAddr::new(addr.and_then(address)?, u16::from_be_bytes(field(port, 0)?)))
    };
    Some((end(0)?, end(1)?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use super::*;
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, listen, setsockopt, socket, sockopt};
    use tracer_testing::address;

    #[test]
    fn without_a_pod_at_the_address_the_reading_is_empty() {
        let (netns, path) = (netns_of(std::process::id()).expect("own namespace"), "/proc/self/ns/net".into());
        let (target, peer) = (address("203.0.113.7:80"), Some(address("203.0.113.1:40000")));
        let query = TargetQuery { from: netns, target, reported: None, awaited: Awaited::Nothing, peer, pod: None };
        let reading = read(&query, &Place { netns, path }, &mut Namespaces::default());
        assert_eq!(reading, PodSockets { peer, ..PodSockets::nothing(netns, target, None) });
    }

    #[test]
    fn only_a_connection_that_is_not_tracked_is_surely_not_translated() {
        let asked = |errno| Err::<Option<u8>, _>(io::Error::from_raw_os_error(errno));
        let found = |errno, can_track| or_untracked(asked(errno), || can_track).ok();
        assert_eq!((found(libc::ENOENT, true), found(libc::EPERM, true)), (Some(None), None));
        assert_eq!(found(libc::EINVAL, false), Some(None), "a kernel without connection tracking");
        assert_eq!(or_untracked(Ok(Some(7)), || true).ok(), Some(Some(7)));
    }

    #[test]
    fn the_source_of_replies_is_the_redirected_address() {
        for (target, peer, to) in [
            ("10.88.0.2:8080", "10.88.0.1:40000", "10.88.0.2:15006"),
            ("[fd00::2]:8080", "[fd00::1]:40000", "[fd00::2]:15006"),
        ] {
            let mut message = request(address(to), address(peer));
            let reply = request(address(peer), address(to));
            // The tuple of replies has another number.
            message.extend_from_slice(&reply[4..]);
            let at = message.len() - (reply.len() - 4) + 2;
            message[at..at + 2].copy_from_slice(&(CTA_TUPLE_REPLY | NLA_F_NESTED).to_ne_bytes());
            assert_eq!(parse_reply(&message), Some((address(to), address(peer))), "{target}");
        }
        assert_eq!((parse_reply(&[]), parse_reply(&[2, 0, 0, 0])), (None, None));
    }

    #[test]
    fn a_listener_on_the_same_port_of_another_address_comes_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let own = listener.local_addr().expect("its address");
        let found = other_listeners(SocketAddr::new([10, 88, 0, 2].into(), own.port())).expect("listeners");
        let first = found.first().cloned();
        assert_eq!(first.map(|(it, device)| (it.local, device)), Some((own, None)));
    }

    #[test]
    fn of_many_listeners_the_first_are_kept() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let one = listening(port.local_addr().expect("its address")).remove(0);
        let at = |it: u16| TcpSocket { local: SocketAddr::from(([10, 88, 0, 2], it)), ..one };
        let found = first_listeners(address("10.88.0.2:60000"), |each| (1..=60_000).for_each(|it| each(at(it))));
        let ports: Vec<u16> = found.iter().map(|it| it.local.port()).collect();
        assert_eq!(ports, [60_000].into_iter().chain(1..MAX_OTHER_LISTENERS as u16).collect::<Vec<_>>());
        assert!(found.capacity() <= 2 * MAX_OTHER_LISTENERS, "{}", found.capacity());
    }

    #[test]
    fn a_listener_accepts_its_own_addresses_only() {
        let listener = std::net::TcpListener::bind("[::]:0").expect("a listener");
        let port = listener.local_addr().expect("its address").port();
        let at = |ip: &str| listening(SocketAddr::new(address(ip), port)).len();
        assert_eq!((at("10.88.0.2"), at("fd00::2")), (1, 1));
        let v4 = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = v4.local_addr().expect("its address").port();
        let at = |ip: &str| listening(SocketAddr::new(address(ip), port)).len();
        assert_eq!((at("127.0.0.1"), at("10.88.0.2"), at("::1")), (1, 0, 0));
    }

    #[test]
    fn a_listener_on_one_device_is_named_with_it() {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a listener");
        setsockopt(&listener, sockopt::BindToDevice, &"lo".into()).expect("a device");
        let at = SocketAddr::new([10, 88, 0, 2].into(), listener.local_addr().expect("its address").port());
        assert!(listening(at).iter().all(|it| it.device != 0));
        let found = other_listeners(at).expect("listeners");
        assert_eq!(found.first().and_then(|(_, device)| device.as_deref()), Some("lo"));
    }

    /// Seen in a run: a server that had listened for IPv6 only, for 0.15 s, was taken for one that had stopped.
    #[test]
    fn a_listener_of_a_new_process_is_found_by_another_search() {
        let netns = netns_of(std::process::id()).expect("own namespace");
        let mut namespaces = Namespaces::default();
        assert!(!namespaces.pids(netns, Duration::ZERO).is_empty());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let at = listener.local_addr().expect("its address");
        let input = Stdio::from(OwnedFd::from(listener));
        let mut holder = Command::new("sleep").arg("60").stdin(input).spawn().expect("a process with the listener");
        let found = other_listeners(SocketAddr::new([10, 88, 0, 2].into(), at.port())).expect("listeners");
        let mut find = |port| held_by_anyone(found.clone(), port, Duration::from_secs(60), netns, &mut namespaces);
        let is_found = |found: Vec<ListenerAt>| found.iter().any(|it| (it.addr, it.server.pid) == (at, holder.id()));
        let by_older = is_found(find(1).0);
        let by_newer = is_found(find(at.port()).0);
        holder.kill().and_then(|()| holder.wait()).expect("the process ends");
        assert_eq!((by_older, by_newer), (false, true));
    }

    /// A process of another namespace holds it (ztunnel), or one that cannot be read.
    #[test]
    fn a_listener_without_a_known_process_is_missing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let at = listener.local_addr().expect("its address");
        let found = other_listeners(SocketAddr::new([10, 88, 0, 2].into(), at.port())).expect("listeners");
        let missing =
            |netns, port| held_by_anyone(found.clone(), port, Duration::ZERO, netns, &mut Namespaces::default()).1;
        let own = netns_of(std::process::id()).expect("own namespace");
        assert_eq!((missing(own, at.port()), missing(Netns(1), at.port())), (false, true));
        assert!(!missing(Netns(1), 1), "nobody listens on that port");
    }

    /// nginx listens in this way.
    #[test]
    fn a_listener_for_ipv6_only_accepts_no_ipv4() {
        let fd = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        setsockopt(&fd, sockopt::Ipv6V6Only, &true).expect("IPv6 only");
        listen(&fd, Backlog::new(1).expect("a backlog")).expect("a listener");
        let listener = std::net::TcpListener::from(fd);
        let port = listener.local_addr().expect("its address").port();
        let at = |ip: &str| listening(SocketAddr::new(address(ip), port)).len();
        assert_eq!((at("10.88.0.2"), at("fd00::2")), (0, 1));
    }
}
