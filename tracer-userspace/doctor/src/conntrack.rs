//! How full the connection tracking table is.

use super::Check;
use super::finding::{Finding, Fix, Remediation, Unread};
use super::view::View;

pub(super) const CHECK: Check = Check {
    name: "conntrack",
    why: "when the connection tracking table is full, the kernel drops the first packet of each new connection",
    expected: || format!("fewer than {WARN} % of net.netfilter.nf_conntrack_max entries in use"),
    run: |view| Ok(vec![judge(read(view)?)]),
};

/// Shares of the table, in percent.
const WARN: u64 = 75;
const FAIL: u64 = 95;

/// The entries and their limit; absent if connection tracking is not loaded.
fn read(view: &View) -> Result<Option<(u64, u64)>, Unread> {
    let Some(max) = view.number_if_any("net/netfilter/nf_conntrack_max")? else { return Ok(None) };
    Ok(Some((view.number("net/netfilter/nf_conntrack_count")?, max)))
}

fn judge(table: Option<(u64, u64)>) -> Finding {
    let Some((count, max)) = table else {
        return CHECK.draft().ok("connection tracking is not loaded: no table to fill");
    };
    if max == 0 {
        // `__nf_conntrack_alloc`, net/netfilter/nf_conntrack_core.c
        return CHECK.draft().with("count", count).with("max", max).ok(format!("{count} entries, and no limit (0)"));
    }
    let share = count.saturating_mul(100) / max;
    let observed = format!("{count} of {max} entries ({share} %)");
    let draft = CHECK.draft().with("count", count).with("max", max);
    let fix = || {
        let larger = format!("sysctl -w net.netfilter.nf_conntrack_max={}", max.saturating_mul(2).max(131_072));
        let keep = "kube-proxy sets the limit at each start: raise its conntrack.maxPerCore (or conntrack.min). Then find what fills the table";
        let count =
            r"conntrack -L | sed 's/^[^=]*=\([^ ]*\) dst=\([^ ]*\).*/\1 \2/' | sort | uniq -c | sort -rn | head";
        Fix::new(Remediation::on_node("Make the table larger", larger), Remediation::on_node(keep, count))
    };
    match share {
        FAIL.. => draft.fail(observed, fix()),
        WARN.. => draft.warn(observed, fix()),
        _ => draft.ok(observed),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;
    use crate::Status;

    #[test]
    fn the_share_of_used_entries_decides() {
        let of = |count| judge(Some((count, 1000))).status;
        assert_eq!((of(0), of(749), of(750), of(950)), (Status::Ok, Status::Ok, Status::Warn, Status::Fail));
        assert_eq!(judge(Some((12, 0))).status, Status::Ok, "0 is no limit");
    }

    #[test]
    fn a_node_without_connection_tracking_is_ok() {
        assert_eq!(Tree::new(&[("proc/sys/net/core/somaxconn", "4096\n")]).finding(&CHECK).status, Status::Ok);
        assert_eq!(Tree::new(&[]).finding(&CHECK).status, Status::Unknown);
        let half = Tree::new(&[("proc/sys/net/netfilter/nf_conntrack_max", "9\n")]);
        assert_eq!(half.finding(&CHECK).status, Status::Unknown);
    }
}
