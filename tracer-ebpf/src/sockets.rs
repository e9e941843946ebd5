//! Tracked connections by socket, and how many of them each bucket of socket addresses has.

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
/// The entry is removed at CLOSE. The kernel may skip that run: a program does not run if it is running on the same CPU
/// already, and newer kernels can preempt it. Then another connection may reuse the memory of the socket, so the
/// destination port is compared. A disconnected socket has port 0.
#[inline(always)]
pub fn by_socket(sk: Sock) -> Option<Conn> {
    if !may_be_tracked(sk) {
        return None;
    }
    let conn = unsafe { CONNS.get(sk.0).copied() }?;
    tracking::is_same_socket(sk.dport(), conn.tuple.dport).then_some(conn)
}

/// Whether the socket's connection began a moment ago. The limit is generous: a task may be preempted for long.
#[inline(always)]
pub fn has_just_begun(sk: Sock) -> bool {
    just_begun(sk).is_some()
}

/// The same, with this source port.
#[inline(always)]
pub fn has_just_begun_from(sk: Sock, port: u16) -> bool {
    just_begun(sk).is_some_and(|conn| conn.tuple.sport == port && conn.tuple.dport == sk.dport())
}

#[inline(always)]
fn just_begun(sk: Sock) -> Option<&'static Conn> {
    const MAX_AGE_NS: u64 = 10_000_000_000;
    let conn = if may_be_tracked(sk) { unsafe { CONNS.get(sk.0) } } else { None };
    conn.filter(|it| conn::age(now(), it.conn, global!(SETTINGS.cpu_mask)) < MAX_AGE_NS)
}

/// Whether the socket belongs to this connection.
#[inline(always)]
pub fn is_of(sk: Sock, conn: u64) -> bool {
    unsafe { CONNS.get(sk.0) }.is_some_and(|it| it.conn == conn)
}

/// Whether the socket belongs to this connection, which began at this address.
#[inline(always)]
pub fn is_from(sk: Sock, conn: u64, addr: &[u8; 16]) -> bool {
    unsafe { CONNS.get(sk.0) }.is_some_and(|it| it.conn == conn && it.tuple.saddr == *addr)
}

/// Removes the entry of an earlier socket at the same address.
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

/// Adds a socket, or replaces the entry of an earlier one. False if the kernel refuses that: this CPU is changing the same
/// bucket of the map.
///
/// `LIVE` is never too low: it is increased before the insert, and decreased only after a removal that succeeded.
/// Replacing an entry does not change it.
#[inline(always)]
pub fn insert(sk: Sock, conn: &Conn) -> bool {
    if unsafe { CONNS.get(sk.0) }.is_none() {
        change_live(sk, 1);
    }
    CONNS.insert(sk.0, conn, 0).is_ok()
}

#[inline(always)]
pub fn remove(sk: Sock) {
    if CONNS.remove(sk.0).is_ok() {
        change_live(sk, u64::MAX);
    }
}

#[inline(always)]
pub fn mark_answered(sk: Sock) {
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
