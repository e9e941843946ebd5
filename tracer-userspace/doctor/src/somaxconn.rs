//! The greatest accept queue of the node's own listeners.

use super::Check;
use super::finding::{Draft, Finding, Fix};

pub(super) const CHECK: Check = Check {
    name: "somaxconn",
    why: "it limits the backlog of each listener of the node and of hostNetwork pods: a larger burst of connects loses SYNs; every other pod has a setting of its own",
    run: |view| vec![view.number("net/core/somaxconn").map_or_else(|unread| draft().unknown(unread), judge)],
};

/// The kernel's own value since 5.4.
const USUAL: u64 = 4096;
/// The kernel's own value before.
const OLD: u64 = 128;

fn draft() -> Draft {
    CHECK.expects(format!("net.core.somaxconn >= {USUAL}, the kernel's default since 5.4"))
}

fn judge(value: u64) -> Finding {
    let observed = format!("net.core.somaxconn = {value}");
    let fix = Fix::sysctl(&[("net.core.somaxconn", "4096")]);
    match value {
        USUAL.. => draft().ok(observed),
        OLD.. => draft().warn(observed, fix),
        _ => draft().fail(format!("{observed}, below {OLD}"), fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    #[test]
    fn small_old_and_usual() {
        let of = |value| judge(value).status;
        assert_eq!((of(16), of(128), of(4096)), (Status::Fail, Status::Warn, Status::Ok));
    }
}
