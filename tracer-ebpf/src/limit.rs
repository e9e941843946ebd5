//! Limits the rate of events that any process or packet can cause: see `tracer_common::limit`.

use aya_ebpf::maps::LruHashMap;
use tracer_common::{
    conn::Held,
    limit::{ALIKE, CONNECTION, HELD, Limit, Limited},
    names::Hook,
    stats::Counter,
};

use crate::{
    actor, atomic,
    emit::{Urgency, count, emit_as, now},
    maps::{CONN_LIMITS, LIMITS, LimitKey},
};

/// The owner of the tokens that all cgroups share. No cgroup has this id.
const ALL: u64 = 0;

/// Whether an event of the current task may be emitted. Refused events are counted.
#[inline(always)]
pub fn allows(what: Limited) -> bool {
    let now = now();
    let key = |owner| LimitKey { owner, what: what as u64 };
    let allowed = take(&LIMITS, key(actor::cgroup()), what.own(), now) || take(&LIMITS, key(ALL), what.shared(), now);
    if !allowed {
        count(match what {
            Limited::Open | Limited::Namespace => Counter::NamespaceHeld,
            Limited::Listen => Counter::ListenHeld,
            Limited::Prober => Counter::ProberHeld,
            Limited::Link => Counter::LinkHeld,
        });
    }
    allowed
}

/// Whether another event of this sort (`tracer_common::limit::sort`) of this connection may be emitted. Refused events are
/// counted, and the connection's attempt learns of it.
#[inline(never)]
pub fn allows_of(conn: u64, sort: u64, hook: Hook) -> bool {
    let now = now();
    let take = |what, limit| take(&CONN_LIMITS, LimitKey { owner: conn, what }, limit, now);
    let allowed = take(0, CONNECTION) || take(sort, ALIKE);
    if !allowed {
        count(Counter::ConnectionHeld);
        if take(1, HELD) {
            emit_as::<Held>(Urgency::Later, hook, |event| event.conn = conn);
        }
    }
    allowed
}

/// Takes a token, if there is one. CPUs that ask at the same time may all take the last one.
#[inline(always)]
fn take(limits: &LruHashMap<LimitKey, u64>, key: LimitKey, limit: Limit, now: u64) -> bool {
    let used = limits.get_ptr_mut(key);
    let before = used.map_or(0, |used| unsafe { *used });
    let Some(next) = limit.next(before, now) else { return false };
    match used {
        // Atomic, so that tokens taken at the same time are all counted.
        Some(used) if next == before + limit.every_ns => unsafe { atomic::add(used, limit.every_ns) },
        Some(used) => unsafe { *used = next },
        None => _ = limits.insert(key, next, 0),
    }
    true
}
