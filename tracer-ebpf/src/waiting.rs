//! Connects without a source port yet, some for each pair of addresses and destination port.
//!
//! Between `CLOSE -> SYN_SENT` and the choice of its port a thread may lose its processor, and another may dial the same
//! target meanwhile: with one place for both, the evidence of the first was nobody's. A thread begins with a place of its
//! own, so that two processors rarely want the same one; an entry is changed in place and never removed, so that none
//! removes what another has just written.
#![expect(clippy::needless_borrows_for_generic_args, reason = "a key by value is a copy on a stack of 512 bytes")]

use tracer_common::{
    stats::Counter,
    tuple::Tuple,
    waiting::{PLACES, Places, choose},
};

use crate::{
    actor,
    emit::count,
    flows,
    kernel::Sock,
    maps::{Conn, PENDING, Pending},
    sockets,
};

/// Only if there is none yet (`BPF_NOEXIST`, include/uapi/linux/bpf.h).
const NOEXIST: u64 = 1;

/// Keeps a connect that has no port yet.
///
/// One that has its port by now leaves its place for the flows. If all places are taken by connects without a port,
/// one is lost, and counted.
#[inline(always)]
pub fn add(sk: Sock, conn: &Conn) {
    let key = conn.tuple.without_port();
    let Some(places) = places_or_new(&key) else {
        count(Counter::MapFull);
        return;
    };
    let places = For { places, sk };
    let chosen = places.at(choose(actor::tid(), &places));
    leave(&read(chosen), &key);
    write(chosen, sk, conn.conn);
}

/// The places of one destination, for a connect of this socket.
struct For {
    places: *mut [Pending; PLACES],
    sk: Sock,
}

impl For {
    #[inline(always)]
    fn at(&self, place: usize) -> *mut Pending {
        unsafe { &raw mut (*self.places)[place] }
    }
}

impl Places for For {
    #[inline(always)]
    fn is_free(&self, place: usize) -> bool {
        let pending = read(self.at(place));
        pending.sk == self.sk.0 || pending.conn == 0 || Sock(pending.sk).num() != 0
    }
}

/// The waiting connect of a packet, and whether the packet goes back to it.
#[inline(always)]
pub fn of_packet(tuple: &Tuple, reversed: &Tuple) -> Option<(u64, bool)> {
    let mut found = Pending { sk: 0, conn: 0 };
    search(tuple, &mut found);
    let is_back = found.conn == 0;
    if is_back {
        search(reversed, &mut found);
    }
    let dport = if is_back { reversed.dport } else { tuple.dport };
    is_waiting(&found, dport).then_some((found.conn, is_back))
}

/// The connect that waits with the source port of this tuple (client's side), still to be asked whether it does.
///
/// Few branches in the loop, and nothing carried from one place to the next: what the kernel verifies at the start grows
/// with them to the power of the places (up to 50 ms more for a program in an earlier form).
#[inline(always)]
fn search(tuple: &Tuple, found: &mut Pending) {
    if tuple.sport == 0 {
        return;
    }
    let Some(places) = (unsafe { PENDING.get(&tuple.without_port()) }) else { return };
    for place in places {
        let pending = read(place);
        // `skc_num`, not `inet_sport`: the latter may be left over from an earlier connect.
        if Sock(pending.sk).num() == tuple.sport {
            *found = pending;
            return;
        }
    }
}

/// A connect waits no longer.
#[inline(always)]
pub fn remove(tuple: &Tuple, conn: u64) {
    let Some(places) = PENDING.get_ptr_mut(&tuple.without_port()) else { return };
    for n in 0..PLACES {
        let place = unsafe { &raw mut (*places)[n] };
        if read(place).conn == conn {
            write(place, Sock(0), 0);
        }
    }
}

#[inline(always)]
fn places_or_new(key: &Tuple) -> Option<*mut [Pending; PLACES]> {
    PENDING.get_ptr_mut(key).or_else(|| {
        // Another processor may have been faster.
        let _ = PENDING.insert(key, [Pending { sk: 0, conn: 0 }; PLACES], NOEXIST);
        PENDING.get_ptr_mut(key)
    })
}

/// Saves the connect that waits at a place which another takes.
#[inline(always)]
fn leave(pending: &Pending, key: &Tuple) {
    if !is_waiting(pending, key.dport) {
        return;
    }
    let mut tuple = *key;
    tuple.sport = Sock(pending.sk).num();
    if tuple.sport == 0 {
        count(Counter::MapFull);
    } else {
        flows::remember(&tuple, pending.conn);
    }
}

/// The socket is still that connection's: the address alone proves nothing.
#[inline(always)]
fn is_waiting(pending: &Pending, dport: u16) -> bool {
    let sk = Sock(pending.sk);
    pending.conn != 0 && sockets::is_of(sk, pending.conn) && sk.dport() == dport
}

#[inline(always)]
fn read(place: *const Pending) -> Pending {
    unsafe { place.read_volatile() }
}

/// The connection last: whoever reads a half-written place finds that its socket is another connection's.
#[inline(always)]
fn write(place: *mut Pending, sk: Sock, conn: u64) {
    unsafe {
        (&raw mut (*place).conn).write_volatile(0);
        (&raw mut (*place).sk).write_volatile(sk.0);
        (&raw mut (*place).conn).write_volatile(conn);
    }
}
