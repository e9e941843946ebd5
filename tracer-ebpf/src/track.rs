//! Which connection a socket or a packet belongs to.
//!
//! `CLOSE -> SYN_SENT` comes before the source port is chosen, so a new connect waits in `PENDING`
//! under its addresses and destination port. Whoever meets a packet that fits reads the port from
//! the waiting socket and, if it is the packet's, moves the flow to `FLOWS` ("promotion").

use tracer_common::{conn::Via, stats::Counter, tuple::Tuple};

use crate::{
    emit::count,
    kernel::Sock,
    maps::{CONNS, Conn, DESTS, Endpoint, FLOWS, PENDING, Pending},
};

/// A connection and how it was found.
#[derive(Clone, Copy)]
pub struct Match {
    pub conn: u64,
    pub via: Via,
}

/// The tracked connection of a socket.
#[inline(always)]
pub fn by_socket(sk: Sock) -> Option<Conn> {
    unsafe { CONNS.get(sk.0).copied() }
}

/// The connection of a packet, whichever direction it goes.
#[inline(always)]
pub fn by_packet(tuple: &Tuple) -> Option<Match> {
    if let Some(conn) = unsafe { FLOWS.get(tuple) } {
        return Some(Match { conn: *conn, via: Via::Flow });
    }
    let reversed = tuple.reversed();
    if let Some(conn) = unsafe { FLOWS.get(&reversed) } {
        return Some(Match { conn: *conn, via: Via::Flow });
    }
    by_pending(tuple).or_else(|| by_pending(&reversed))
}

/// The waiting connect that a packet in the client's direction belongs to; promotes it.
#[inline(always)]
fn by_pending(tuple: &Tuple) -> Option<Match> {
    let mut key = *tuple;
    key.sport = 0;
    let pending = unsafe { PENDING.get(&key).copied() }?;
    if waiting_port(&pending, &key) != tuple.sport || tuple.sport == 0 {
        return None;
    }
    remember_flow(tuple, pending.conn);
    Some(Match { conn: pending.conn, via: Via::Pending })
}

/// Source port of a waiting socket, 0 if it has none yet or is no longer that connection's:
/// sockets are freed and reused, so the address alone proves nothing.
#[inline(always)]
fn waiting_port(pending: &Pending, key: &Tuple) -> u16 {
    let sk = Sock(pending.sk);
    match by_socket(sk) {
        // `skc_num`, not `inet_sport`: the latter may be left over from an earlier connect.
        Some(conn) if conn.conn == pending.conn && sk.dport() == key.dport => sk.num(),
        _ => 0,
    }
}

/// Ties a tuple (client's side) to a connection.
#[inline(always)]
pub fn remember_flow(tuple: &Tuple, conn: u64) {
    if FLOWS.insert(tuple, conn, 0).is_err() {
        count(Counter::MapFull);
    }
}

/// Whether this flow is tied to this connection already.
#[inline(always)]
pub fn knows_flow(tuple: &Tuple, conn: u64) -> bool {
    unsafe { FLOWS.get(tuple) }.is_some_and(|known| *known == conn)
}

/// Begins to track a socket whose source port is usually not chosen yet.
#[inline(always)]
pub fn begin(sk: Sock, conn: &Conn) {
    let mut key = conn.tuple;
    if key.sport != 0 {
        remember_flow(&key, conn.conn);
        key.sport = 0;
    }
    promote(&mut key);
    key.sport = 0;
    let failed = CONNS.insert(sk.0, conn, 0).is_err()
        | PENDING.insert(&key, Pending { sk: sk.0, conn: conn.conn }, 0).is_err()
        | DESTS.insert(destination(&key), conn.conn, 0).is_err();
    if failed {
        count(Counter::MapFull);
    }
}

/// Saves the connect that waits under this key (its newest) before another takes its place.
#[inline(always)]
fn promote(key: &mut Tuple) {
    if let Some(old) = unsafe { PENDING.get(&*key).copied() } {
        let port = waiting_port(&old, key);
        if port != 0 {
            key.sport = port;
            remember_flow(key, old.conn);
        }
    }
}

/// A tracked socket left SYN_SENT: nothing waits any more.
#[inline(always)]
pub fn settle(tuple: &Tuple, conn: u64) {
    let mut key = *tuple;
    key.sport = 0;
    if unsafe { PENDING.get(&key) }.is_some_and(|p| p.conn == conn) {
        let _ = PENDING.remove(&key);
    }
    let end = destination(tuple);
    if unsafe { DESTS.get(&end) }.is_some_and(|waiting| *waiting == conn) {
        let _ = DESTS.remove(&end);
    }
}

/// The newest connect that waits for an answer from this address and port.
#[inline(always)]
pub fn waiting_for(addr: &[u8; 16], port: u16) -> Option<Match> {
    let key = Endpoint { addr: *addr, port: u32::from(port) };
    let conn = unsafe { DESTS.get(&key) }?;
    Some(Match { conn: *conn, via: Via::Destination })
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
