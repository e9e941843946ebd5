//! Inspects a target that does not answer: its namespace, links and listeners, and the node's neighbour entry and
//! routes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use libc::{NDA_DST, NDA_LLADDR, RTM_GETNEIGH};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::addresses::Detection;
use super::enter::in_netns;
use super::links::{self, Lladdr};
use super::namespaces::{Namespaces, Owner, Place, max_age};
use super::netlink::{Netlink, address, attribute, consistent, family, field, number};
use super::pod_sockets::{listening, redirected, source_seen};
use super::policy;
use super::qdiscs;
use super::servers::{self, Limits};
use super::settings::sysctl;
use super::sock_diag::{self, LISTEN, TcpSocket};
use super::throttle::{self, Throttling};
use crate::cgroups::Mounts;
use tracer_common::state::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT1, LAST_ACK};
use tracer_model::event::{
    Inspection, LinkQdisc, LinkState, ListenerState, MOST_LISTENERS, NeighbourState, Netns, NoWayBack,
    RedirectedListeners, RedirectedTo, ServedConnection, Serving, StrayRoute, TranslatedTarget, WrongNeighbour,
};
use tracer_model::query::{Awaited, TargetQuery};

/// Half-open connections are `SYN_RECV` on older kernels and `NEW_SYN_RECV` on newer ones.
const HALF_OPEN: u32 = 1 << 3 | 1 << 12;

/// `struct ndmsg`: family, padding, index, state, flags, type.
const NDMSG: usize = 12;
/// linux/neighbour.h
const NDA_CACHEINFO: u16 = 3;
const NUD_PERMANENT: u16 = 0x80;
/// `NUD_REACHABLE`, `NUD_STALE`, `NUD_DELAY`, `NUD_PROBE` and `NUD_PERMANENT`.
const NUD_WITH_LLADDR: u16 = 0x02 | 0x04 | 0x08 | 0x10 | NUD_PERMANENT;
const NTF_EXT_LEARNED: u8 = 0x10;

/// Settings of the target's namespace: they decide what its listener does when a queue is full, and which SYNs the
/// reverse-path filter drops there.
const SETTINGS: &[(&str, &str)] = &[
    ("tcp_syncookies", "ipv4/tcp_syncookies"),
    ("tcp_max_syn_backlog", "ipv4/tcp_max_syn_backlog"),
    ("somaxconn", "core/somaxconn"),
    ("all.rp_filter", "ipv4/conf/all/rp_filter"),
];
/// Counters of `TcpExt` that show full queues.
const COUNTERS: &[&str] = &["ListenOverflows", "ListenDrops", "TCPReqQFullDrop"];

/// Inspects a target. A value that cannot be read is absent.
pub fn read(query: &TargetQuery, from: &Place, namespaces: &mut Namespaces, throttling: &mut Throttling) -> Inspection {
    let target = query.target;
    let mut inspection = Inspection::nothing(from.netns, target);
    let family = if target.is_ipv4() { "ipv4" } else { "ipv6" };
    // The setting holds for the whole machine, and only the initial namespace shows it. With hostNetwork, that is ours.
    let most = setting(&format!("{family}/neigh/default/gc_thresh3"));
    inspection.node_values.extend(most.map(|most| ("gc_thresh3".to_owned(), most)));
    let entry = from.enter(|| inspect_node(&mut inspection, query.peer)).ok().flatten();
    // The kernel looks an address up in the table of local addresses before all other routes.
    let is_own = from.enter(|| owns(target.ip())).map_err(io::Error::other).flatten();
    if matches!(is_own, Ok(true)) {
        inspection.netns = Some(from.netns);
        let sockets = from.enter(|| {
            let listeners = inspect_target_namespace(&mut inspection, query.peer, None);
            Sockets::of(listeners, &inspection, query.peer)
        });
        if let Some((mut sockets, _)) = sockets.ok().zip(query.peer) {
            inspection.redirect = sockets.queue.take();
            let mut find = |ago| {
                let pids = namespaces.pids(from.netns, ago);
                serving(&sockets, pids, from.netns, &servers::OF_NODE, throttling.mounts())
            };
            // A server that began a moment ago may be missing in the older list.
            let is_whole = |it: &Serving| !it.processes.is_empty() || sockets.listeners.is_empty();
            let found = Some(find(max_age(query.awaited))).filter(is_whole);
            let serving = found.unwrap_or_else(|| find(max_age(Awaited::Handshake)));
            // The node's namespace has the processes of many pods. The quotas of the servers are enough.
            let cgroups = serving.processes.iter().filter_map(|it| it.cpu_cgroup.as_ref().map(PathBuf::from));
            inspection.throttled = throttle::with_parents(cgroups).iter().filter_map(|it| throttle::read(it)).collect();
            inspection.serving = Some(Box::new(serving));
        }
        return without_ipvs_address(inspection);
    }
    match namespaces.owner(query, from) {
        Owner::One(netns, path) => {
            let mut sockets = inspect_namespace(&mut inspection, netns, &path, from, query.peer, entry);
            inspection.redirect = sockets.queue.take();
            inspection.throttled = throttling.of(netns, namespaces);
            inspection.stray_route = query.peer.and_then(|peer| stray_route(&inspection, peer, from));
            if let Some(link) = query.peer.and_then(|_| link_of_pod(&inspection)).cloned() {
                let ends = from.enter(|| Some(qdiscs(from.netns, &links::other_end(&link)?.state)));
                inspection.qdiscs.extend(ends.ok().flatten().unwrap_or_default());
            }
            let pids = query.peer.map(|_| namespaces.pids(netns, max_age(query.awaited)));
            inspection.serving =
                pids.map(|pids| Box::new(serving(&sockets, pids, netns, &servers::OF_POD, throttling.mounts())));
        }
        Owner::Unsure => inspection.ambiguous = true,
        Owner::Nobody => inspection.ambiguous = is_own.is_err(),
    }
    inspection
}

/// Drops the listeners and links if only kube-proxy's IPVS device has the address. kube-proxy binds all Service
/// addresses to that device and never sets it up: the node's listeners do not serve the Service.
fn without_ipvs_address(inspection: Inspection) -> Inspection {
    let target = inspection.target.ip();
    let mut holders = inspection.links.iter().filter(|link| link.addrs.contains(&target)).peekable();
    if holders.peek().is_none() || !holders.all(|link| link.name == links::IPVS_DEVICE) {
        return inspection;
    }
    let Inspection { neighbour, translated, node_values, .. } = inspection;
    Inspection { neighbour, translated, node_values, ..Inspection::nothing(inspection.from, inspection.target) }
}

fn inspect_namespace(
    inspection: &mut Inspection,
    netns: Netns,
    path: &Path,
    from: &Place,
    peer: Option<SocketAddr>,
    entry: Option<Neighbour>,
) -> Sockets {
    let target = inspection.target;
    inspection.netns = Some(netns);
    let seen = peer.map(|peer| source_seen(target, peer, from));
    let is_seen = !matches!(seen, Some(Err(_)));
    let seen = seen.and_then(Result::ok).or(peer);
    let source = seen.map(|seen| seen.ip()).filter(|own| !own.is_unspecified());
    let source = source.or_else(|| from.enter(|| source_to(target)).ok().flatten());
    let own = File::open(&from.path).ok();
    let mut back = None;
    let looked = in_netns(path, || {
        let listeners = inspect_target_namespace(inspection, seen, own.as_ref());
        let link = link_of_pod(inspection).map(|link| link.ifindex);
        inspection.wrong_neighbour = link.zip(entry).and_then(|(link, entry)| wrong_neighbour(&entry, link));
        let to = source.map(|to| SocketAddr::new(to, seen.map_or(0, |seen| seen.port())));
        back = to.and_then(|to| neighbours(peer.map(|_| target), to).ok()?.0);
        inspection.neighbour_back =
            back.as_ref().map(|entry| entry.state.clone()).filter(NeighbourState::is_unresolved);
        back = back.take_if(|entry| link == Some(entry.state.ifindex));
        inspection.no_way_back = source.and_then(|to| no_way_back(target, to));
        if let Some((link, seen)) = link_of_pod(inspection).cloned().zip(seen) {
            // If the target's address is on another kind of link, such as `lo`, the way back may be any.
            inspection.stray_way_back = policy::stray_way_back(target, seen, &link);
            inspection.qdiscs = qdiscs(netns, &link);
        }
        let mut sockets = Sockets::of(listeners, inspection, seen).of_peer(peer);
        // Perhaps the target knows it by another source.
        sockets.no_connection_of.take_if(|_| !is_seen);
        sockets
    });
    let wrong = back.map(|entry| {
        let is_gateway = source != Some(entry.state.addr);
        from.enter(|| wrong_neighbour(&entry, receiver(inspection, is_gateway)?))
    });
    inspection.wrong_neighbour_back = wrong.and_then(|wrong| wrong.ok().flatten());
    looked.unwrap_or_default()
}

/// The device of the calling thread's namespace at which frames from the target arrive: the other end of its link, if
/// that is a port of no bridge. Else a gateway of the target may be another host, and frames for the source arrive at
/// the device of the route to the target.
fn receiver(inspection: &Inspection, is_gateway: bool) -> Option<u32> {
    let end = link_of_pod(inspection).and_then(links::other_end).map(|end| end.state);
    match end.filter(|end| end.master.is_none()) {
        Some(end) => Some(end.ifindex),
        None => inspection.neighbour.as_ref().filter(|_| !is_gateway).map(|entry| entry.ifindex),
    }
}

/// The target's link with its address, if that is a pod's.
fn link_of_pod(inspection: &Inspection) -> Option<&LinkState> {
    let link = inspection.link_with(inspection.target.ip())?;
    let is_vlan = link.kind.as_deref() == Some("vlan");
    (link.peer_ifindex.is_some() || link.parent.is_some() || is_vlan).then_some(link)
}

/// The entry has the link-layer address of no link of the calling thread's namespace. Its frames should arrive on
/// `link`. A kernel answers for its addresses on each of its links.
fn wrong_neighbour(entry: &Neighbour, link: u32) -> Option<WrongNeighbour> {
    let (lladdr, link) = (entry.lladdr?, links::by_index(link).ok()??);
    let own = link.lladdr.filter(|own| *own != lladdr)?;
    let text = |lladdr: Lladdr| lladdr.map(|byte| format!("{byte:02x}")).join(":");
    (!links::lladdrs().ok()?.contains(&lladdr)).then(|| WrongNeighbour {
        addr: entry.state.addr,
        lladdr: text(lladdr),
        link: link.state.name,
        link_lladdr: text(own),
    })
}

/// A route from the node that leads away from the target's link; `None` if the target's link is not known.
fn stray_route(inspection: &Inspection, source: SocketAddr, from: &Place) -> Option<StrayRoute> {
    let target = inspection.target;
    let link = inspection.link_with(target.ip())?;
    from.enter(|| policy::stray_route(source, target, link)).ok().flatten()
}

/// The unusual queueing disciplines of a link of the calling thread's namespace.
fn qdiscs(netns: Netns, link: &LinkState) -> Vec<LinkQdisc> {
    let of_kind = |kind| LinkQdisc { netns, device: link.name.clone(), kind };
    qdiscs::unusual(link.ifindex).unwrap_or_default().into_iter().map(of_kind).collect()
}

/// The sockets of a target, read in its namespace.
#[derive(Debug, Default)]
struct Sockets {
    /// The inodes of the listeners.
    listeners: BTreeSet<u64>,
    /// The attempt's connection and its inode. The inode is 0 before the server accepts.
    connection: Option<(ServedConnection, u64)>,
    /// The prober's end, if no socket has the connection.
    no_connection_of: Option<SocketAddr>,
    /// Where the namespace's own address translation sent the connection, and the sockets there.
    redirect: Option<(SocketAddr, Box<Self>)>,
    /// The same before that listener has a connection: its queue may be full.
    queue: Option<Box<RedirectedListeners>>,
}

impl Sockets {
    /// Searches the connection from `peer` in the calling thread's namespace. Without tcp_diag the kernel finds no
    /// connection (`__sock_diag_cmd` returns ENOENT), and lists no listeners.
    fn of(listeners: BTreeSet<u64>, inspection: &Inspection, peer: Option<SocketAddr>) -> Self {
        let found = peer.map(|peer| (peer, sock_diag::find(inspection.target, peer)));
        let is_none = |socket: &io::Result<_>| matches!(socket, Ok(None)) && inspection.listeners.is_some();
        let no_connection_of = found.as_ref().filter(|(_, socket)| is_none(socket)).map(|(peer, _)| *peer);
        let connection = found.and_then(|(peer, socket)| connection(peer, socket.ok()??));
        let to = no_connection_of.map(|peer| (redirected(inspection.target, peer), peer));
        // Perhaps the socket of another address has it.
        let no_connection_of = no_connection_of.filter(|_| !matches!(to, Some((Err(_), _))));
        let to = to.and_then(|(to, peer)| Some((to.ok()??, peer)));
        let redirect = to.and_then(|(to, peer)| Self::redirected(to, peer));
        let queue = to.and_then(|(to, peer)| redirected_queue(to, peer)).map(Box::new);
        let mut sockets = Self { listeners, connection, no_connection_of, redirect, queue };
        if inspection.listeners.iter().flatten().all(|listener| listener.waiting == 0) {
            sockets.find_queue(inspection.target);
        }
        sockets
    }

    /// Gives the connection the prober's own end, before its source was translated.
    fn of_peer(mut self, peer: Option<SocketAddr>) -> Self {
        let Some(peer) = peer else { return self };
        let redirected = self.redirect.as_mut().and_then(|(_, it)| it.connection.as_mut());
        self.connection.iter_mut().chain(redirected).for_each(|(it, _)| it.peer = peer);
        self.no_connection_of = self.no_connection_of.map(|_| peer);
        self
    }

    /// The sockets to which an address translation of the calling thread's namespace leads, such as those of a sidecar.
    fn redirected(to: SocketAddr, peer: SocketAddr) -> Option<(SocketAddr, Box<Self>)> {
        let connection = Some(connection(peer, sock_diag::find(to, peer).ok()??)?);
        let listeners = listening(to).iter().map(|it| it.inode).collect();
        Some((to, Box::new(Self { listeners, connection, ..Self::default() })))
    }

    /// Finds the listener that has the connection, if that is none on the target's port. A transparent proxy (TPROXY)
    /// or a program at sk_lookup gives it to another one, and the connection keeps the target's port.
    fn find_queue(&mut self, target: SocketAddr) {
        let Some((waiting, 0)) = self.connection.as_ref().filter(|(it, _)| !it.accepted) else { return };
        let peer = waiting.peer;
        let Ok(queues) = waiting_at(target) else { return };
        let Ok(Some(now)) = sock_diag::find(target, peer) else { return };
        self.wait_in(&queues, connection(peer, now));
    }

    /// The connection may have been accepted since the queues were read.
    fn wait_in(&mut self, queues: &[(SocketAddr, u64)], now: Option<(ServedConnection, u64)>) {
        self.connection = now;
        if let Some((it, 0)) = self.connection.as_mut().filter(|(it, _)| !it.accepted && !queues.is_empty()) {
            it.waits_at = queues.iter().map(|(addr, _)| *addr).collect::<BTreeSet<_>>().into_iter().collect();
            self.listeners = queues.iter().map(|(_, inode)| *inode).collect();
        }
    }
}

/// The listeners at this address of the calling thread's namespace, if none has a connection from `peer` yet.
fn redirected_queue(to: SocketAddr, peer: SocketAddr) -> Option<RedirectedListeners> {
    let is_waiting = matches!(owns(to.ip()), Ok(true)) && matches!(sock_diag::find(to, peer), Ok(None));
    let found = is_waiting.then(|| listeners(to, None, false).ok()).flatten()?;
    Some(RedirectedListeners { to, listeners: found.into_iter().map(|(listener, _)| listener).collect() })
}

/// The processes that hold these sockets.
fn serving(sockets: &Sockets, pids: &[u32], netns: Netns, most: &Limits, mounts: &Mounts) -> Serving {
    let accepted = sockets.connection.as_ref().map(|(_, inode)| *inode).filter(|inode| *inode != 0);
    let wanted = sockets.listeners.iter().copied().chain(accepted).collect();
    let found = servers::holders(&wanted, pids, netns, most);
    let holds = |held: &BTreeSet<u64>| accepted.is_some_and(|inode| held.contains(&inode));
    // A process that forked after the accept may share it with its child. Then either can answer.
    let mut holders = found.held.iter().filter(|(_, held)| holds(held)).map(|(pid, _)| *pid);
    let pid = holders.next().filter(|_| holders.next().is_none());
    let connection = sockets.connection.as_ref().map(|(connection, _)| ServedConnection { pid, ..connection.clone() });
    let states = servers::states(found.held.keys().copied(), pid, mounts);
    let (incomplete, no_connection_of) = (found.incomplete || states.incomplete, sockets.no_connection_of);
    let redirect = sockets
        .redirect
        .as_ref()
        .map(|(to, sockets)| Box::new(RedirectedTo { to: *to, serving: serving(sockets, pids, netns, most, mounts) }));
    Serving { incomplete, connection, no_connection_of, redirect, ..states }
}

/// Whether the calling thread's namespace has this address.
fn owns(addr: IpAddr) -> io::Result<bool> {
    if addr.is_loopback() { Ok(true) } else { super::addresses::has(addr) }
}

/// Inspects the calling thread's namespace, which is the target's, and returns its listeners' inodes. `peer` is the
/// prober's end as it is seen there, `from` the prober's namespace.
fn inspect_target_namespace(
    inspection: &mut Inspection,
    peer: Option<SocketAddr>,
    from: Option<&File>,
) -> BTreeSet<u64> {
    let number = from.and_then(|from| links::number_of(from).ok().flatten());
    inspection.links = links::around(inspection.target.ip(), number).unwrap_or_default();
    let detection = Detection::of(inspection.target.ip());
    (inspection.duplicate, inspection.tentative) = (detection.duplicate, detection.tentative);
    let settings = SETTINGS.iter().filter_map(|(name, path)| Some(((*name).to_owned(), setting(path)?)));
    inspection.values = settings.collect();
    let found = listeners(inspection.target, peer, inspection.values.get("tcp_syncookies") == Some(&0)).ok();
    let inodes = found.iter().flatten().map(|(_, inode)| *inode).collect();
    inspection.listeners = found.map(|found| found.into_iter().map(|(listener, _)| listener).collect());
    let text = fs::read_to_string("/proc/thread-self/net/netstat").unwrap_or_default();
    inspection.values.extend(counters(&text, "TcpExt:", COUNTERS));
    inodes
}

/// The source address of connections from the calling thread's namespace to the target. connect() of a UDP socket sends
/// nothing.
fn source_to(target: SocketAddr) -> Option<IpAddr> {
    let unspecified: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}

/// The error if the calling thread's namespace, which has the address `own`, has no route to `to` or one that refuses
/// (`fib_props`, net/ipv4/fib_semantics.c). The kernel drops a SYN that it cannot answer without any event
/// (`tcp_conn_request`: no `route_req`).
fn no_way_back(own: SocketAddr, to: IpAddr) -> Option<NoWayBack> {
    // Else the kernel answers EINVAL.
    UdpSocket::bind((own.ip(), 0)).ok()?;
    // Without the prober's port: see `policy::route` on what the kernel does with a packet of the attempt.
    let errno = policy::route(own, (to, 0).into()).err()?.raw_os_error()?;
    matches!(errno, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)
        .then_some(NoWayBack { to, errno })
}

/// Inspects the calling thread's namespace, which is the prober's, and returns the target's own neighbour entry.
fn inspect_node(inspection: &mut Inspection, peer: Option<SocketAddr>) -> Option<Neighbour> {
    let entry = add_neighbours(inspection, neighbours(peer, inspection.target));
    inspection.translated = peer.and_then(|peer| translated(inspection.target, peer)).map(Box::new);
    entry.filter(|entry| entry.state.addr == inspection.target.ip())
}

/// Adds what a dump found. If it failed, the number of entries is not known.
fn add_neighbours(inspection: &mut Inspection, found: io::Result<(Option<Neighbour>, u64)>) -> Option<Neighbour> {
    let (entry, count) = found.ok()?;
    inspection.neighbour = entry.as_ref().map(|entry| entry.state.clone());
    inspection.node_values.insert("neighbours".to_owned(), count);
    entry
}

/// Where connection tracking of the calling thread's namespace sends the attempt, if nobody answers for that address.
fn translated(target: SocketAddr, peer: SocketAddr) -> Option<TranslatedTarget> {
    let to = redirected(target, peer).ok()?.filter(|to| to.ip() != target.ip())?;
    let entry = neighbours(Some(peer), to).ok()?.0.map(|entry| entry.state);
    entry.filter(NeighbourState::is_unresolved).map(|neighbour| TranslatedTarget { to, neighbour })
}

fn setting(path: &str) -> Option<u64> {
    sysctl(path)?.parse().ok()
}

/// These counters in `/proc/net/netstat` or `/proc/net/snmp`. Lines of one kind come in pairs: names, then values.
pub fn counters(text: &str, kind: &str, wanted: &[&str]) -> BTreeMap<String, u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(kind));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return BTreeMap::new() };
    let pairs = names.split_whitespace().zip(values.split_whitespace());
    let found = pairs.filter(|(name, _)| wanted.contains(name));
    found.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// A listener and its inode.
type Listener = (ListenerState, u64);

/// The listeners on a port of the calling thread's namespace. `count`: also count their half-open connections. For that
/// the kernel walks every connection of the machine, those in TIME_WAIT included (`inet_diag_dump_icsk`).
fn listeners(target: SocketAddr, peer: Option<SocketAddr>, count: bool) -> io::Result<Vec<Listener>> {
    let port = target.port();
    let (v4, v6) = if count { half_open(port, peer)? } else { (None, None) };
    fullest(target.ip(), |keep| {
        sock_diag::dump(LISTEN, port, |socket| {
            let (addr, half_open) = (socket.local, if socket.v6 { v6 } else { v4 });
            keep((ListenerState { addr, waiting: socket.received, backlog: socket.sent, half_open }, socket.inode));
        })
    })
}

/// The listeners of a dump, at most [`MOST_LISTENERS`] of them, and never many more in memory.
fn fullest(target: IpAddr, dump: impl FnOnce(&mut dyn FnMut(Listener)) -> io::Result<()>) -> io::Result<Vec<Listener>> {
    let mut all = Vec::new();
    dump(&mut |listener| {
        all.push(listener);
        cut(&mut all, 2 * MOST_LISTENERS, target);
    })?;
    cut(&mut all, MOST_LISTENERS, target);
    Ok(all)
}

/// Keeps [`MOST_LISTENERS`] of the listeners on a port if there are more than `most`; SO_REUSEPORT allows many. Prefers
/// those that can get a SYN to the target, then those with the fullest queues.
fn cut(listeners: &mut Vec<Listener>, most: usize, target: IpAddr) {
    if listeners.len() > most {
        listeners.sort_by_key(|(it, _)| {
            let ip = it.addr.ip();
            let fits = ip == target || ip.is_unspecified() && (ip.is_ipv6() || target.is_ipv4());
            std::cmp::Reverse((fits, it.waiting > it.backlog, it.waiting, it.half_open))
        });
        listeners.truncate(MOST_LISTENERS);
    }
}

/// How many half-open connections an IPv4 listener on this port has, and a listener on `[::]`, which gets both
/// families. `None` if the one from `peer` is among them: no queue refused that SYN.
fn half_open(port: u16, peer: Option<SocketAddr>) -> io::Result<(Option<u32>, Option<u32>)> {
    let (mut v4, mut v6, mut is_taken) = (0, 0, false);
    sock_diag::dump(HALF_OPEN, port, |socket| {
        *(if socket.v6 { &mut v6 } else { &mut v4 }) += 1;
        is_taken |= Some(socket.remote) == peer;
    })?;
    Ok(if is_taken { (None, None) } else { (Some(v4), Some(v4 + v6)) })
}

/// The target's end of a connection, and its inode.
fn connection(peer: SocketAddr, socket: TcpSocket) -> Option<(ServedConnection, u64)> {
    // The socket has no inode any more once the server has closed it.
    let is_closed = [FIN_WAIT1, LAST_ACK].contains(&socket.state);
    if !is_closed && ![ESTABLISHED, CLOSE_WAIT].contains(&socket.state) {
        return None;
    }
    let (unread, unacknowledged) = (socket.received, Some(socket.sent));
    let accepted = is_closed || socket.inode != 0;
    let served = ServedConnection { peer, unread, unacknowledged, accepted, pid: None, waits_at: Vec::new() };
    Some((served, socket.inode))
}

/// The listeners of the calling thread's namespace with connections in their queues, and their inodes: those that can
/// have one to the target. None if one listens on the target's port, or if there are very many.
fn waiting_at(target: SocketAddr) -> io::Result<Vec<(SocketAddr, u64)>> {
    others_waiting(target, |each| sock_diag::dump(LISTEN, 0, each))
}

/// The same of a dump.
fn others_waiting(
    target: SocketAddr,
    dump: impl FnOnce(&mut dyn FnMut(TcpSocket)) -> io::Result<()>,
) -> io::Result<Vec<(SocketAddr, u64)>> {
    let (mut found, mut is_own) = (Vec::new(), false);
    dump(&mut |socket| {
        let fits = if target.is_ipv6() { socket.v6 } else { !socket.only_v6 };
        if socket.received > 0 && fits {
            is_own |= socket.local.port() == target.port();
            found.extend((found.len() <= MOST_LISTENERS).then_some((socket.local, socket.inode)));
        }
    })?;
    Ok(if is_own || found.len() > MOST_LISTENERS { Vec::new() } else { found })
}

/// The neighbour entry that a packet from the calling thread's namespace needs: that of the gateway, if there is one. Also
/// the number of entries of its family that the limit counts. `from`: the connection's own end, if it is known. Each device
/// has its own entries: only the entry on the route's device counts. The route to a link-local address depends on the
/// device, which is not known: its entry counts if only one device has one.
fn neighbours(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<(Option<Neighbour>, u64)> {
    // Rules can match the ports.
    let known = from.filter(|from| !from.ip().is_unspecified());
    let own = known.and_then(|from| policy::route(from, to).ok());
    let is_link_local = matches!(to.ip(), IpAddr::V6(addr) if addr.is_unicast_link_local());
    let route = own.unwrap_or_else(|| policy::route_to(to).ok().flatten()).filter(|_| !is_link_local);
    let next = route.and_then(|route| route.gateway).unwrap_or(to.ip());
    let mut request = [0; NDMSG];
    request[0] = family(next);
    consistent(|| {
        let (mut found, mut count) = (Vec::new(), 0);
        Netlink::open(NETLINK_ROUTE)?.dump(RTM_GETNEIGH, &request, |message| {
            count += u64::from(is_limited(message));
            let is_on_route = |ifindex| route.is_none_or(|route| route.ifindex == ifindex);
            let fits = |entry: &Neighbour| entry.state.addr == next && is_on_route(entry.state.ifindex);
            found.extend(parse_neighbour(message).filter(fits));
        })?;
        let is_sure = found.len() == 1 || !is_link_local;
        Ok((found.into_iter().next().filter(|_| is_sure), count))
    })
}

/// Entries that are permanent or learned by a program do not count for `gc_thresh3` (`neigh_alloc`,
/// net/core/neighbour.c, 5.0 and later).
fn is_limited(message: &[u8]) -> bool {
    let state = message.get(8..10).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let flags = message.get(10).copied().unwrap_or_default();
    state & NUD_PERMANENT == 0 && flags & NTF_EXT_LEARNED == 0
}

/// A neighbour entry, and the link-layer address that the kernel sends frames to.
#[derive(Debug)]
struct Neighbour {
    state: NeighbourState,
    lladdr: Option<Lladdr>,
}

fn parse_neighbour(message: &[u8]) -> Option<Neighbour> {
    let (ifindex, rest) = (u32::from_ne_bytes(field(message, 4)?), message.get(NDMSG..)?);
    let state = u16::from_ne_bytes(field(message, 8)?);
    let addr = address(attribute(rest, NDA_DST)?)?;
    let lladdr = links::lladdr(rest, NDA_LLADDR).filter(|_| state & NUD_WITH_LLADDR != 0);
    // `struct nda_cacheinfo` begins with `ndm_confirmed`, in ticks of 10 ms (USER_HZ).
    let confirmed = number(rest, NDA_CACHEINFO).filter(|_| lladdr.is_some());
    let confirmed_ms_ago = confirmed.map(|ticks| u64::from(ticks) * 10);
    let state = NeighbourState { addr, state: state_name(state).to_owned(), ifindex, confirmed_ms_ago };
    Some(Neighbour { state, lladdr })
}

/// `NUD_*`, linux/neighbour.h
const fn state_name(state: u16) -> &'static str {
    match state {
        0x01 => "incomplete",
        0x02 => "reachable",
        0x04 => "stale",
        0x08 => "delay",
        0x10 => "probe",
        0x20 => "failed",
        0x40 => "noarp",
        0x80 => "permanent",
        _ => "none",
    }
}

#[cfg(test)]
mod tests;
