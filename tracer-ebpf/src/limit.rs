//! Bounds what any process can do as often as it likes: see `tracer_common::limit`.

use tracer_common::{
    limit::{Limit, Limited},
    stats::Counter,
};

use crate::{
    actor, atomic,
    emit::{count, now},
    maps::{Held, LIMITS},
};

/// Who shares what is nobody's own: no cgroup has this number.
const ALL: u64 = 0;

/// Whether an event of the current task may be printed; what may not is counted.
#[inline(always)]
pub fn allows(what: Limited) -> bool {
    let now = now();
    let reported = take(actor::cgroup(), what, what.own(), now) || take(ALL, what, what.shared(), now);
    if !reported {
        count(match what {
            Limited::Open | Limited::Namespace => Counter::NamespaceHeld,
            Limited::Listen => Counter::ListenHeld,
        });
    }
    reported
}

/// Takes a token, if there is one. Processors that ask at once may all take the last.
#[inline(always)]
fn take(cgroup: u64, what: Limited, limit: Limit, now: u64) -> bool {
    let key = Held { cgroup, what: what as u64 };
    let used = LIMITS.get_ptr_mut(key);
    let before = used.map_or(0, |used| unsafe { *used });
    let Some(next) = limit.next(before, now) else { return false };
    match used {
        // Of several that take one at once each is counted.
        Some(used) if next == before + limit.every_ns => unsafe { atomic::add(used, limit.every_ns) },
        Some(used) => unsafe { *used = next },
        None => _ = LIMITS.insert(key, next, 0),
    }
    true
}
