//! Sockets: those of tracked connections, and how many of them a bucket of addresses holds.

use tracer_common::{
    conn,
    tracking::{self, live_bucket},
    tuple::Tuple,
};

use crate::{
    atomic::add,
    emit::now,
    kernel::Sock,
    maps::{CONNS, Conn, LIVE, global},
};

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
pub fn insert(sk: Sock, conn: &Conn) -> bool {
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

/// Takes the source port from a tracked socket, if it has one.
#[inline(always)]
pub fn fill_port(sk: Sock, tuple: &mut Tuple) {
    let port = sk.sport();
    if port != 0 {
        tuple.sport = port;
    }
}
