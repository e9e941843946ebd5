//! Flows: which connection a tuple belongs to. Tuples are from the client's side.

use tracer_common::{stats::Counter, tracking::Flow, tuple::Tuple};

use crate::{
    emit::{count, now},
    maps::FLOWS,
};

/// The flow of a tuple, unless it ended so long ago that another process may use the port.
#[inline(always)]
pub fn by_tuple(tuple: &Tuple) -> Option<Flow> {
    let flow = unsafe { FLOWS.get(tuple).copied() }?;
    flow.is_usable(now()).then_some(flow)
}

#[inline(always)]
pub fn remember(tuple: &Tuple, conn: u64) {
    insert(tuple, Flow { conn, ended_ns: 0 });
}

/// The socket of a flow is closed.
#[inline(always)]
pub fn end(tuple: &Tuple, conn: u64) {
    insert(tuple, Flow { conn, ended_ns: now() });
}

#[inline(always)]
fn insert(tuple: &Tuple, flow: Flow) {
    if FLOWS.insert(tuple, flow, 0).is_err() {
        count(Counter::MapFull);
    }
}

/// Whether the socket of a flow with this tuple is closed.
#[inline(always)]
pub fn has_ended(tuple: &Tuple) -> bool {
    unsafe { FLOWS.get(tuple) }.is_some_and(|flow| flow.ended_ns != 0)
}

/// Whether this tuple is already assigned to this connection.
#[inline(always)]
pub fn knows(tuple: &Tuple, conn: u64) -> bool {
    unsafe { FLOWS.get(tuple) }.is_some_and(|flow| flow.conn == conn)
}
