use std::io::{Read as _, Write as _};

use super::*;
use tracer_model::event::{LinkState, Netns};

#[test]
fn counters_are_found_by_their_names() {
    let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 0 7 9\nIpExt: InNoRoutes\nIpExt: 3\n";
    let found = counters(text, "TcpExt:", COUNTERS);
    assert_eq!((found.get("ListenOverflows"), found.get("ListenDrops")), (Some(&7), Some(&9)));
    assert_eq!(found.len(), 2);
    assert!(counters("", "TcpExt:", COUNTERS).is_empty());
}

#[test]
fn a_failed_dump_of_neighbours_counts_none() {
    let count = |found| {
        let mut inspection = Inspection::nothing(Netns(1), ([10, 88, 0, 2], 80).into());
        let _ = add_neighbours(&mut inspection, found);
        inspection.node_values.get("neighbours").copied()
    };
    assert_eq!((count(Ok((None, 0))), count(Err(io::ErrorKind::Interrupted.into()))), (Some(0), None));
}

/// Flannel's entries for other nodes are permanent, Cilium's are learned by a program.
#[test]
fn only_entries_that_the_limit_counts_are_counted() {
    let counts = |state: u16, flags| {
        let mut message = [0; NDMSG];
        message[8..10].copy_from_slice(&state.to_ne_bytes());
        message[10] = flags;
        is_limited(&message)
    };
    assert_eq!([counts(0x02, 0), counts(0x80, 0), counts(0x02, 0x10)], [true, false, false]);
}

#[test]
fn a_listener_is_reported_with_its_queue() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("its address");
    let _waiting = std::net::TcpStream::connect(addr).expect("a connection");
    let found = listeners(addr, None, true).expect("sock_diag");
    assert_eq!(found.len(), 1, "{found:?}");
    let (state, inode) = &found[0];
    assert_eq!((state.addr, state.waiting, state.half_open), (addr, 1, Some(0)));
    assert_eq!(listeners(addr, None, false).expect("sock_diag")[0].0.half_open, None);
    assert!(state.backlog > 0 && *inode > 0);
}

/// Reads the connection before the server accepts it, after that, and after the server has read all.
#[test]
fn unread_bytes_of_a_connection_are_reported() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("its address");
    let mut client = std::net::TcpStream::connect(addr).expect("a connection");
    let peer = client.local_addr().expect("its address");
    client.write_all(b"hello").expect("sent");
    let socket = || sock_diag::find(addr, peer).expect("sock_diag").expect("the connection");
    let read = || connection(peer, socket()).map(|(it, inode)| (it.unread, it.accepted, inode != 0));
    assert_eq!(read(), Some((5, false, false)));
    let (mut server, _) = listener.accept().expect("accepted");
    assert_eq!(read(), Some((5, true, true)));
    server.read_exact(&mut [0; 5]).expect("read");
    assert_eq!(read(), Some((0, true, true)));
    let of_none = || sock_diag::find(addr, SocketAddr::new(peer.ip(), 1)).map(|socket| socket.is_none()).ok();
    assert_eq!(of_none(), Some(true), "the listener is no connection");
    let mut inspection = Inspection::nothing(Netns(1), addr);
    let other = SocketAddr::new(peer.ip(), 1);
    let no_connection_of = |it: &Inspection| Sockets::of(BTreeSet::new(), it, Some(other)).no_connection_of;
    assert_eq!(no_connection_of(&inspection), None, "the kernel may list no sockets");
    inspection.listeners = Some(Vec::new());
    assert_eq!(no_connection_of(&inspection), Some(other));
    drop(listener);
    assert_eq!(of_none(), Some(true), "nothing listens there");
}

#[test]
fn this_process_serves_its_own_listener() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr = listener.local_addr().expect("its address");
    let inodes = listeners(addr, None, false).expect("sock_diag").into_iter().map(|(_, inode)| inode).collect();
    let sockets = Sockets { listeners: inodes, ..Sockets::default() };
    let own = std::process::id();
    let netns = super::super::procfs::netns_of(own).expect("own namespace");
    let read = serving(&sockets, &[own], netns, &servers::OF_POD, &Mounts::read().expect("mounts"));
    assert_eq!(read.processes.iter().map(|it| it.pid).collect::<Vec<_>>(), [own]);
    assert!(!read.incomplete && read.connection.is_none());
}

#[test]
fn of_many_listeners_the_fullest_that_can_get_the_syn_are_kept() {
    let target = IpAddr::from([10, 88, 0, 4]);
    let listener = |ip: [u8; 4], waiting| {
        let addr = SocketAddr::from((ip, 80));
        (ListenerState { addr, waiting, backlog: 128, half_open: None }, 1)
    };
    let kept = |listeners: Vec<Listener>| {
        fullest(target, |keep| {
            listeners.into_iter().for_each(keep);
            Ok(())
        })
        .expect("listeners")
    };
    let many = |count| (0..count).map(|_| listener([127, 0, 0, 1], 200)).collect::<Vec<_>>();
    let all =
        kept([vec![listener([10, 88, 0, 4], 129)], many(1_000), vec![listener([0, 0, 0, 0], 7)], many(100)].concat());
    assert_eq!((all.len(), all[0].0.waiting, all[1].0.waiting), (MOST_LISTENERS, 129, 7));
    let few = kept((0..3).map(|waiting| listener([127, 0, 0, 1], waiting)).collect());
    assert_eq!(few.iter().map(|(it, _)| it.waiting).collect::<Vec<_>>(), [0, 1, 2], "in the kernel's order");
}

/// A listener with connections in its queue.
fn full(local: &str, inode: u64) -> TcpSocket {
    let local: SocketAddr = local.parse().expect("an address");
    let (v6, remote) = (local.is_ipv6(), SocketAddr::new(local.ip(), 0));
    let (state, retransmits, device) = (tracer_common::state::LISTEN, 0, 0);
    TcpSocket { v6, only_v6: false, state, retransmits, local, remote, device, received: 1, sent: 128, inode }
}

#[test]
fn only_a_full_listener_that_can_have_the_connection_may_be_where_it_waits() {
    let (v4, v6) = ("10.88.0.4:8080", "[fd00::4]:8080");
    let proxy = full("0.0.0.0:15006", 1);
    let both = full("[::]:15006", 2);
    let empty = TcpSocket { received: 0, ..proxy };
    let only_v6 = TcpSocket { only_v6: true, ..both };
    let own = full("0.0.0.0:8080", 3);
    let many = |count: usize| (0..count).map(|inode| full("0.0.0.0:15006", inode as u64)).collect::<Vec<_>>();
    let rows: &[(&str, Vec<TcpSocket>, usize)] = &[
        (v4, vec![proxy, both], 2),
        (v4, vec![proxy, empty, only_v6], 1),
        (v6, vec![proxy, both, only_v6], 2),
        (v4, vec![proxy, own], 0),
        (v4, vec![own, proxy], 0),
        (v4, vec![proxy, TcpSocket { received: 0, ..own }], 1),
        (v6, vec![both, own], 1),
        (v4, many(MOST_LISTENERS), MOST_LISTENERS),
        (v4, many(MOST_LISTENERS + 1), 0),
        (v4, many(2 * MOST_LISTENERS), 0),
    ];
    for (target, sockets, expected) in rows {
        let found = others_waiting(target.parse().expect("an address"), |each| {
            sockets.iter().for_each(|socket| each(*socket));
            Ok(())
        });
        assert_eq!(found.expect("a dump").len(), *expected, "{target}: {sockets:?}");
    }
}

#[test]
fn a_connection_that_was_accepted_since_waits_nowhere() {
    let [peer, proxy] = ["10.88.0.1:40000", "0.0.0.0:15006"].map(|it| it.parse::<SocketAddr>().expect("an address"));
    let after = |inode: u64, queues: &[(SocketAddr, u64)]| {
        let state = ESTABLISHED;
        let mut sockets = Sockets { listeners: BTreeSet::from([3]), ..Sockets::default() };
        sockets.wait_in(queues, connection(peer, TcpSocket { state, inode, ..full("10.88.0.4:8080", 0) }));
        (sockets.connection.expect("a connection").0.waits_at, sockets.listeners)
    };
    let queues = [(proxy, 2), (proxy, 1)];
    assert_eq!(after(0, &queues), (vec![proxy], BTreeSet::from([1, 2])));
    assert_eq!(after(9, &queues), (Vec::new(), BTreeSet::from([3])));
    assert_eq!(after(0, &[]), (Vec::new(), BTreeSet::from([3])));
}

/// Behind a masquerade of the node that changes the source port.
#[test]
fn a_connection_with_a_translated_source_has_the_probers_end() {
    let [seen, own] = ["10.88.0.1:31585", "10.88.0.1:59652"].map(|it| it.parse::<SocketAddr>().expect("an address"));
    let found = || connection(seen, TcpSocket { state: ESTABLISHED, inode: 9, ..full("10.88.0.4:8080", 0) });
    let inner = Box::new(Sockets { connection: found(), ..Sockets::default() });
    let redirect = Some((seen, inner));
    let sockets = Sockets { connection: found(), no_connection_of: Some(seen), redirect, ..Sockets::default() };
    let sockets = sockets.of_peer(Some(own));
    assert_eq!(sockets.connection.map(|(it, _)| it.peer), Some(own));
    assert_eq!(sockets.no_connection_of, Some(own));
    assert_eq!(sockets.redirect.and_then(|(_, it)| it.connection).map(|(it, _)| it.peer), Some(own));
}

#[test]
fn an_address_on_the_ipvs_device_alone_has_no_owner() {
    let target = SocketAddr::from(([10, 96, 0, 1], 443));
    let holders = |names: &[&str]| {
        let link = |name: &&str| LinkState { name: (*name).into(), addrs: vec![target.ip()], ..LinkState::default() };
        let (netns, links) = (Some(Netns(1)), names.iter().map(link).collect());
        let read = Inspection { netns, links, listeners: Some(Vec::new()), ..Inspection::nothing(Netns(1), target) };
        without_ipvs_address(read)
    };
    assert_eq!(holders(&["kube-ipvs0"]), Inspection::nothing(Netns(1), target));
    assert_eq!(holders(&["kube-ipvs0", "eth0"]).netns, Some(Netns(1)), "the node's own, too");
    assert_eq!(holders(&["eth0"]).netns, Some(Netns(1)));
    assert_eq!(holders(&[]).netns, Some(Netns(1)), "an IPv6 address is gone with its link");
}

#[test]
fn loopback_has_a_source_address_and_a_route_back() {
    let own: IpAddr = Ipv4Addr::LOCALHOST.into();
    assert_eq!(source_to(SocketAddr::new(own, 80)), Some(own));
    assert_eq!(no_way_back(SocketAddr::new(own, 80), own), None);
}
