//! Finds the connection of a socket or a packet.
//!
//! The kernel chooses the source port after `CLOSE -> SYN_SENT`. Until then a new connect waits in `PENDING` under its
//! addresses and destination port. When a program sees a packet with these addresses, it reads the port from the
//! waiting socket. If that is the packet's port, the flow moves to `FLOWS`. See `waiting.rs`.
#![expect(clippy::needless_borrows_for_generic_args, reason = "a key by value is copied to the stack of 512 bytes")]

use tracer_common::{conn::Via, packet::Packet, state, stats::Counter, tracking::port_bucket, tuple::Tuple};

use crate::{
    emit::count,
    flows,
    kernel::{Skb, Sock},
    maps::{Conn, DESTS, Endpoint, KNOWN, Pending, TARGET_PORTS},
    sockets, waiting,
};

/// A connection and how it was found.
#[derive(Clone, Copy)]
pub struct Match {
    pub conn: u64,
    pub via: Via,
}

/// The connection of a packet. A packet of the handshake may have a translated client address or target.
#[inline(always)]
pub fn of_packet(packet: &Packet) -> Option<Match> {
    of_client(&packet.tuple, packet)
}

/// The same where conntrack of the packet's network namespace may know the tuple before a translation.
#[inline(always)]
pub fn of_tracked_packet(skb: Skb, packet: &Packet) -> Option<Match> {
    let mut tuple = if packet.is_syn_ack() { packet.tuple.reversed() } else { packet.tuple };
    if packet.is_syn() {
        skb.undo_translation(&mut tuple);
    }
    of_client(&tuple, packet)
}

/// `tuple`: that of the packet, for a packet of the handshake in the client's direction.
#[inline(always)]
fn of_client(tuple: &Tuple, packet: &Packet) -> Option<Match> {
    by_packet(tuple).or_else(|| if packet.is_syn() { by_translated(tuple) } else { None })
}

/// The connection of a packet with a translated source address, or with another target: behind a redirect or a Service.
///
/// Source NAT keeps the port if it can (`nf_nat_setup_info`, net/netfilter/nf_nat_core.c). So the packet belongs to the
/// connect that waits for this destination, if their ports are equal. At another target, the source must be equal, too.
#[inline(always)]
fn by_translated(tuple: &Tuple) -> Option<Match> {
    waiting_at(&destination(tuple), tuple, false)
        .or_else(|| waiting_at(&any_port(tuple), tuple, true))
        .or_else(|| waiting_at(&source(tuple), tuple, true))
}

#[inline(always)]
fn waiting_at(key: &Endpoint, tuple: &Tuple, has_source: bool) -> Option<Match> {
    let waiting = unsafe { DESTS.get(key) }?;
    let sk = Sock(waiting.sk);
    let is_owner =
        if has_source { sockets::is_from(sk, waiting.conn, &tuple.saddr) } else { sockets::is_of(sk, waiting.conn) };
    // The keys stay after the handshake.
    let still_waits = is_owner && sk.state() == state::SYN_SENT;
    (still_waits && sk.num() == tuple.sport).then_some(Match { conn: waiting.conn, via: Via::Translated })
}

/// The connection of a packet of either direction. A waiting connect with the same port wins over a flow that has
/// ended, because probes reuse ports.
#[inline(always)]
pub fn by_packet(tuple: &Tuple) -> Option<Match> {
    let reversed = tuple.reversed();
    let flow = flows::by_tuple(tuple).or_else(|| flows::by_tuple(&reversed));
    if let Some(flow) = &flow
        && flow.ended_ns == 0
    {
        return Some(Match { conn: flow.conn, via: Via::Flow });
    }
    if let Some((conn, is_reply)) = waiting::of_packet(tuple, &reversed) {
        flows::remember(if is_reply { &reversed } else { tuple }, conn);
        return Some(Match { conn, via: Via::Pending });
    }
    flow.map(|flow| Match { conn: flow.conn, via: Via::Flow })
}

/// Begins to track a socket that usually has no source port yet.
#[inline(always)]
pub fn begin(sk: Sock, conn: &Conn) {
    // First the socket: a waiting connect counts as closed if its socket is not in `CONNS`.
    if conn.tuple.sport == 0 {
        remember(sk, conn);
        waiting::add(sk, conn);
    } else {
        begin_with_port(sk, conn);
    }
}

/// Begins to track a socket that has its source port.
#[inline(always)]
pub fn begin_with_port(sk: Sock, conn: &Conn) {
    remember(sk, conn);
    flows::remember(&conn.tuple, conn.conn);
}

#[inline(always)]
fn remember(sk: Sock, conn: &Conn) {
    if let Some(is_target) = TARGET_PORTS.get_ptr_mut(port_bucket(conn.tuple.dport)) {
        unsafe { *is_target = 1 };
    }
    let waits = Pending { sk: sk.0, conn: conn.conn };
    // If the kernel refuses these, only packets with a translated address are not found.
    let _ = DESTS.insert(any_port(&conn.tuple), waits, 0);
    let _ = DESTS.insert(source(&conn.tuple), waits, 0);
    if !sockets::insert(sk, conn) | DESTS.insert(destination(&conn.tuple), waits, 0).is_err() {
        count(Counter::MapFull);
    }
}

/// False for a packet that [`of_packet`] certainly does not find. A SYN may have another port than its connect.
#[inline(always)]
pub fn may_be_tracked(packet: &Packet) -> bool {
    packet.is_syn() || is_target(packet.tuple.dport) || is_target(packet.tuple.sport)
}

/// False for a port that certainly no tracked connect had as its destination.
#[inline(always)]
pub fn is_target(port: u16) -> bool {
    TARGET_PORTS.get(port_bucket(port)).is_none_or(|is_target| *is_target != 0)
}

/// Removes a connect that left SYN_SENT from the waiting ones.
#[inline(always)]
pub fn stop_waiting(tuple: &Tuple, conn: u64) {
    waiting::remove(tuple, conn);
    let end = destination(tuple);
    if unsafe { DESTS.get(&end) }.is_some_and(|waiting| waiting.conn == conn) {
        let _ = DESTS.remove(&end);
    }
}

/// Whether this is a destination of an earlier connect. Afterwards it is one.
#[inline(always)]
pub fn is_known_or_add(tuple: &Tuple) -> bool {
    let end = destination(tuple);
    let known = unsafe { KNOWN.get(&end) }.is_some();
    if !known {
        // If the map is full, userspace only inspects the destination once more.
        let _ = KNOWN.insert(&end, 1, 0);
    }
    known
}

/// The newest connect that waits for an answer from this address and port.
#[inline(always)]
pub fn waiting_for(addr: &[u8; 16], port: u16) -> Option<Match> {
    let key = Endpoint { addr: *addr, port: u32::from(port) };
    let waiting = unsafe { DESTS.get(&key) }?;
    Some(Match { conn: waiting.conn, via: Via::Destination })
}

#[inline(always)]
fn destination(tuple: &Tuple) -> Endpoint {
    Endpoint { addr: tuple.daddr, port: u32::from(tuple.dport) }
}

/// The key of the newest connect to any port of this address.
#[inline(always)]
fn any_port(tuple: &Tuple) -> Endpoint {
    Endpoint { addr: tuple.daddr, port: 0 }
}

/// The key of the newest connect from this address. No port has this number.
#[inline(always)]
fn source(tuple: &Tuple) -> Endpoint {
    Endpoint { addr: tuple.saddr, port: 1 << 16 }
}
