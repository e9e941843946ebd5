//! The limit of the accept queues of the node's own listeners.

use super::Check;
use super::finding::{Finding, Fix};

pub(super) const CHECK: Check = Check {
    name: "somaxconn",
    why: "it limits the backlog of each listener of the node and of hostNetwork pods: a larger burst of connects loses SYNs. Each other pod has its own setting",
    expected: || format!("net.core.somaxconn >= {DEFAULT}, the kernel's default since 5.4"),
    run: |view| Ok(vec![judge(view.number("net/core/somaxconn")?)]),
};

/// The kernel's default since 5.4.
const DEFAULT: u64 = 4096;
/// The kernel's default before 5.4.
const OLD_DEFAULT: u64 = 128;

fn judge(value: u64) -> Finding {
    let observed = format!("net.core.somaxconn = {value}");
    let fix = Fix::sysctl(&[("net.core.somaxconn", "4096")]);
    match value {
        DEFAULT.. => CHECK.draft().ok(observed),
        OLD_DEFAULT.. => CHECK.draft().warn(observed, fix),
        _ => CHECK.draft().fail(format!("{observed}, below {OLD_DEFAULT}"), fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    #[test]
    fn less_than_the_old_default_fails_and_less_than_the_new_one_warns() {
        let of = |value| judge(value).status;
        assert_eq!((of(16), of(128), of(4096)), (Status::Fail, Status::Warn, Status::Ok));
    }
}
