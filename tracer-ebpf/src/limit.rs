//! Limits the rate of events that any process can cause: see `tracer_common::limit`.

use tracer_common::{
    limit::{Limit, Limited},
    stats::Counter,
};

use crate::{
    actor, atomic,
    emit::{count, now},
    maps::{LIMITS, LimitKey},
};

/// The key of the tokens that all cgroups share. No cgroup has this id.
const ALL: u64 = 0;

/// Whether an event of the current task may be emitted. Refused events are counted.
#[inline(always)]
pub fn allows(what: Limited) -> bool {
    let now = now();
    let allowed = take(actor::cgroup(), what, what.own(), now) || take(ALL, what, what.shared(), now);
    if !allowed {
        count(match what {
            Limited::Open | Limited::Namespace => Counter::NamespaceHeld,
            Limited::Listen => Counter::ListenHeld,
            Limited::Prober => Counter::ProberHeld,
        });
    }
    allowed
}

/// Takes a token, if there is one. CPUs that ask at the same time may all take the last one.
#[inline(always)]
fn take(cgroup: u64, what: Limited, limit: Limit, now: u64) -> bool {
    let key = LimitKey { cgroup, what: what as u64 };
    let used = LIMITS.get_ptr_mut(key);
    let before = used.map_or(0, |used| unsafe { *used });
    let Some(next) = limit.next(before, now) else { return false };
    match used {
        // Atomic, so that tokens taken at the same time are all counted.
        Some(used) if next == before + limit.every_ns => unsafe { atomic::add(used, limit.every_ns) },
        Some(used) => unsafe { *used = next },
        None => _ = LIMITS.insert(key, next, 0),
    }
    true
}
