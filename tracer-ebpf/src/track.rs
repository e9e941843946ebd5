//! Which connection a socket or a packet belongs to.
//!
//! `CLOSE -> SYN_SENT` comes before the source port is chosen, so a new connect waits in `PENDING`
//! under its addresses and destination port. Whoever meets a packet that fits reads the port from
//! the waiting socket and, if it is the packet's, moves the flow to `FLOWS` ("promotion"): `waiting.rs`.
#![expect(clippy::needless_borrows_for_generic_args, reason = "a key by value is a copy on a stack of 512 bytes")]

use tracer_common::{
    conn::{self, Via},
    packet::Packet,
    stats::Counter,
    tracking::{self, Flow, live_bucket},
    tuple::Tuple,
};

use crate::{
    atomic::add,
    emit::{count, now},
    kernel::Sock,
    maps::{CONNS, Conn, DESTS, Endpoint, FLOWS, KNOWN, LIVE, Pending, global},
    waiting,
};

/// A connection and how it was found.
#[derive(Clone, Copy)]
pub struct Match {
    pub conn: u64,
    pub via: Via,
}

/// The tracked connection of a socket.
///
/// The entry goes with `-> CLOSE`; where that run was missed (a program does not run while it runs on
/// the same CPU already, and newer kernels can preempt it) the socket's memory may be another
/// connection's by now: its destination tells. A disconnected socket has none any more.
#[inline(always)]
pub fn by_socket(sk: Sock) -> Option<Conn> {
    if !may_be_tracked(sk) {
        return None;
    }
    let conn = unsafe { CONNS.get(sk.0).copied() }?;
    tracking::is_same_socket(sk.dport(), conn.tuple.dport).then_some(conn)
}

/// The socket's connection began a moment ago (a task may be preempted for long).
#[inline(always)]
pub fn has_just_begun(sk: Sock) -> bool {
    const JUST_NS: u64 = 10_000_000_000;
    let conn = if may_be_tracked(sk) { unsafe { CONNS.get(sk.0) } } else { None };
    conn.is_some_and(|it| conn::age(now(), it.conn, global!(SETTINGS.cpu_mask)) < JUST_NS)
}

/// The socket is that connection's.
#[inline(always)]
pub fn is_of(sk: Sock, conn: u64) -> bool {
    unsafe { CONNS.get(sk.0) }.is_some_and(|it| it.conn == conn)
}

/// A socket begins a connection that is not tracked: what was known of its memory is over.
#[inline(always)]
pub fn forget(sk: Sock) {
    if may_be_tracked(sk) {
        remove(sk);
    }
}

/// False for a socket that is certainly not in `CONNS`.
#[inline(always)]
fn may_be_tracked(sk: Sock) -> bool {
    LIVE.get(live_bucket(sk.0)).is_none_or(|live| *live != 0)
}

/// Counts before it inserts, and an entry that takes another's place not at all; [`remove`] takes back
/// only what it removed. So a bucket is never counted too low.
#[inline(always)]
fn insert(sk: Sock, conn: &Conn) -> bool {
    if unsafe { CONNS.get(sk.0) }.is_none() {
        change_live(sk, 1);
    }
    CONNS.insert(sk.0, conn, 0).is_ok()
}

/// The connection of this socket is over.
#[inline(always)]
pub fn remove(sk: Sock) {
    if CONNS.remove(sk.0).is_ok() {
        change_live(sk, u64::MAX);
    }
}

/// The connection of this socket got a good answer.
#[inline(always)]
pub fn answered(sk: Sock) {
    if let Some(conn) = CONNS.get_ptr_mut(sk.0) {
        unsafe { (*conn).answered = 1 };
    }
}

#[inline(always)]
fn change_live(sk: Sock, by: u64) {
    if let Some(live) = LIVE.get_ptr_mut(live_bucket(sk.0)) {
        unsafe { add(live, by) };
    }
}

/// The connection of a packet, or of one of a handshake whose client's address was translated on its way.
#[inline(always)]
pub fn of_packet(packet: &Packet) -> Option<Match> {
    by_packet(&packet.tuple).or_else(|| if packet.is_syn() { by_translated(packet) } else { None })
}

/// A source NAT leaves the port as it is if it can (`nf_nat_setup_info`, net/netfilter/nf_nat_core.c): what nobody claims, and
/// has the port of the connect that waits for its destination, is that one's.
#[inline(always)]
fn by_translated(packet: &Packet) -> Option<Match> {
    let tuple = if packet.is_syn_ack() { packet.tuple.reversed() } else { packet.tuple };
    let waiting = unsafe { DESTS.get(&destination(&tuple)) }?;
    let is_its = is_of(Sock(waiting.sk), waiting.conn) && Sock(waiting.sk).num() == tuple.sport;
    is_its.then_some(Match { conn: waiting.conn, via: Via::Translated })
}

/// The connection of a packet, whichever direction it goes. A connect that waits with this very port
/// goes before a flow that has ended: probes come back with the same port.
#[inline(always)]
pub fn by_packet(tuple: &Tuple) -> Option<Match> {
    let reversed = tuple.reversed();
    let flow = by_flow(tuple).or_else(|| by_flow(&reversed));
    if let Some(flow) = &flow
        && flow.ended_ns == 0
    {
        return Some(Match { conn: flow.conn, via: Via::Flow });
    }
    if let Some((conn, is_back)) = waiting::of_packet(tuple, &reversed) {
        remember_flow(if is_back { &reversed } else { tuple }, conn);
        return Some(Match { conn, via: Via::Pending });
    }
    flow.map(|flow| Match { conn: flow.conn, via: Via::Flow })
}

/// The flow of a tuple (client's side), unless it ended so long ago that the port may be another
/// process's.
#[inline(always)]
fn by_flow(tuple: &Tuple) -> Option<Flow> {
    let flow = unsafe { FLOWS.get(tuple).copied() }?;
    flow.is_usable(now()).then_some(flow)
}

/// Ties a tuple (client's side) to a connection.
#[inline(always)]
pub fn remember_flow(tuple: &Tuple, conn: u64) {
    insert_flow(tuple, Flow { conn, ended_ns: 0 });
}

/// The socket of a flow is closed.
#[inline(always)]
pub fn end_flow(tuple: &Tuple, conn: u64) {
    insert_flow(tuple, Flow { conn, ended_ns: now() });
}

#[inline(always)]
fn insert_flow(tuple: &Tuple, flow: Flow) {
    if FLOWS.insert(tuple, flow, 0).is_err() {
        count(Counter::MapFull);
    }
}

/// Whether this flow is tied to this connection already.
#[inline(always)]
pub fn knows_flow(tuple: &Tuple, conn: u64) -> bool {
    unsafe { FLOWS.get(tuple) }.is_some_and(|flow| flow.conn == conn)
}

/// Begins to track a socket whose source port is usually not chosen yet.
#[inline(always)]
pub fn begin(sk: Sock, conn: &Conn) {
    let tuple = &conn.tuple;
    let waits = Pending { sk: sk.0, conn: conn.conn };
    if !insert(sk, conn) | DESTS.insert(destination(tuple), waits, 0).is_err() {
        count(Counter::MapFull);
    }
    // After its socket is known: a waiting connect whose socket is not is taken for one that is over.
    if tuple.sport == 0 {
        waiting::add(sk, conn);
    } else {
        remember_flow(tuple, conn.conn);
    }
}

/// A tracked socket left SYN_SENT: nothing waits any more.
#[inline(always)]
pub fn settle(tuple: &Tuple, conn: u64) {
    waiting::remove(tuple, conn);
    let end = destination(tuple);
    if unsafe { DESTS.get(&end) }.is_some_and(|waiting| waiting.conn == conn) {
        let _ = DESTS.remove(&end);
    }
}

/// Somebody connected to this destination before. From now on somebody has.
#[inline(always)]
pub fn is_known(tuple: &Tuple) -> bool {
    let end = destination(tuple);
    let known = unsafe { KNOWN.get(&end) }.is_some();
    if !known {
        // Without a place it is looked at again: no loss.
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

/// Takes the source port from a tracked socket, if it has one.
#[inline(always)]
pub fn fill_port(sk: Sock, tuple: &mut Tuple) {
    let port = sk.sport();
    if port != 0 {
        tuple.sport = port;
    }
}
