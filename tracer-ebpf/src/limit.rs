//! Bounds what any process can do as often as it likes: see `tracer_common::limit`.

use tracer_common::{limit::Limited, stats::Counter};

use crate::{
    actor,
    emit::{count, now},
    maps::{Held, LIMITS},
};

/// Whether an event of the current task may be told; what may not is counted. Two processors that ask at once may both take
/// the last token.
#[inline(always)]
pub fn allows(what: Limited) -> bool {
    let key = Held { cgroup: actor::cgroup(), what: what as u64 };
    let used = LIMITS.get_ptr_mut(key);
    let before = used.map_or(0, |used| unsafe { *used });
    let Some(next) = what.limit().next(before, now()) else {
        count(match what {
            Limited::Open | Limited::Namespace => Counter::NamespaceHeld,
            Limited::Listen => Counter::ListenHeld,
        });
        return false;
    };
    match used {
        Some(used) => unsafe { *used = next },
        None => _ = LIMITS.insert(key, next, 0),
    }
    true
}
