//! Connects that have no source port yet: a few slots for each pair of addresses and destination port.
//!
//! A thread may be preempted between `CLOSE -> SYN_SENT` and the choice of its port. Another thread may connect to the
//! same target meanwhile. With a single slot, the evidence of the first connect would be lost.
//!
//! Two rules avoid races between CPUs:
//! - The thread id chooses the first slot that is tried, so two CPUs rarely use the same one.
//! - An entry is changed in place and never removed, so no CPU removes what another has just written.
#![expect(clippy::needless_borrows_for_generic_args, reason = "a key by value is copied to the stack of 512 bytes")]

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
    maps::{Conn, NOEXIST, PENDING, Pending},
    sockets,
};

/// Adds a connect that has no port yet.
///
/// If its slot is used by a connect that has a port by now, that one moves to the flows. If all slots are used by
/// connects without a port, one of them is lost and counted.
#[inline(always)]
pub fn add(sk: Sock, conn: &Conn) {
    let key = conn.tuple.without_port();
    let Some(places) = places_or_new(&key) else {
        count(Counter::MapFull);
        return;
    };
    let places = Slots { places, sk };
    let chosen = places.at(choose(actor::tid(), &places));
    move_to_flows(&read(chosen), &key);
    write(chosen, sk, conn.conn);
}

/// The slots of one destination, for a connect of socket `sk`.
struct Slots {
    places: *mut [Pending; PLACES],
    sk: Sock,
}

impl Slots {
    #[inline(always)]
    fn at(&self, place: usize) -> *mut Pending {
        unsafe { &raw mut (*self.places)[place] }
    }
}

impl Places for Slots {
    #[inline(always)]
    fn is_free(&self, place: usize) -> bool {
        let pending = read(self.at(place));
        pending.sk == self.sk.0 || pending.conn == 0 || Sock(pending.sk).num() != 0
    }
}

/// The waiting connect of a packet, and whether the packet is a reply to it.
#[inline(always)]
pub fn of_packet(tuple: &Tuple, reversed: &Tuple) -> Option<(u64, bool)> {
    let mut found = Pending { sk: 0, conn: 0 };
    search(tuple, &mut found);
    let is_reply = found.conn == 0;
    if is_reply {
        search(reversed, &mut found);
    }
    let dport = if is_reply { reversed.dport } else { tuple.dport };
    is_waiting(&found, dport).then_some((found.conn, is_reply))
}

/// Finds the slot with a socket that has the source port of this tuple (client's side). The caller checks that it still
/// waits.
///
/// The loop has few branches and carries no state from one slot to the next. The verifier's work grows exponentially
/// with both: an earlier version took 50 ms longer to load.
#[inline(always)]
fn search(tuple: &Tuple, found: &mut Pending) {
    if tuple.sport == 0 {
        return;
    }
    let Some(places) = (unsafe { PENDING.get(&tuple.without_port()) }) else { return };
    for place in places {
        let pending = read(place);
        // Not `inet_sport`: an earlier connect on this socket may have set it. `skc_num` is 0 until the port is chosen.
        if Sock(pending.sk).num() == tuple.sport {
            *found = pending;
            return;
        }
    }
}

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
        // Fails if another CPU was faster: then its entry is used.
        let _ = PENDING.insert(key, [Pending { sk: 0, conn: 0 }; PLACES], NOEXIST);
        PENDING.get_ptr_mut(key)
    })
}

/// Moves a connect to the flows when its slot is about to be overwritten.
#[inline(always)]
fn move_to_flows(pending: &Pending, key: &Tuple) {
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

/// Whether the socket still belongs to this connection. Its address alone does not prove it: memory is reused.
#[inline(always)]
fn is_waiting(pending: &Pending, dport: u16) -> bool {
    let sk = Sock(pending.sk);
    pending.conn != 0 && sockets::is_of(sk, pending.conn) && sk.dport() == dport
}

#[inline(always)]
fn read(place: *const Pending) -> Pending {
    unsafe { place.read_volatile() }
}

/// Writes the connection last. In a half-written slot, the socket does not belong to the connection: see
/// [`is_waiting`].
#[inline(always)]
fn write(place: *mut Pending, sk: Sock, conn: u64) {
    unsafe {
        (&raw mut (*place).conn).write_volatile(0);
        (&raw mut (*place).sk).write_volatile(sk.0);
        (&raw mut (*place).conn).write_volatile(conn);
    }
}
