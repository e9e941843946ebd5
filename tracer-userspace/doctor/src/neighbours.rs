//! Room in the neighbour tables, which all network namespaces share.

use super::Check;
use super::finding::{Draft, Finding, Fix, Unread};
use super::view::View;
use tracer_node::procfs::of_each_cpu;

pub(super) const CHECK: Check = Check {
    name: "neighbours",
    why: "above gc_thresh3 the kernel resolves no new address: connects to pods that are not in the table fail",
    expected: || "fewer entries than gc_thresh2".into(),
    run: |view| Ok(vec![check(view, "ipv4", "arp_cache"), check(view, "ipv6", "ndisc_cache")]),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    entries: u64,
    /// How many new entries found no room since boot; absent on kernels that do not count them.
    fulls: Option<u64>,
    thresh2: u64,
    thresh3: u64,
}

fn draft(family: &str) -> Draft {
    CHECK.expects(format!("fewer entries than net.{family}.neigh.default.gc_thresh2")).with("family", family)
}

fn check(view: &View, family: &str, file: &str) -> Finding {
    let read = |view: &View| -> Result<Option<Table>, Unread> {
        if family == "ipv6" && view.number_if_any("net/ipv6/conf/all/forwarding")?.is_none() {
            return Ok(None);
        }
        let threshold = |at: u32| view.number(&format!("net/{family}/neigh/default/gc_thresh{at}"));
        let (thresh2, thresh3) = (threshold(2)?, threshold(3)?);
        let path = format!("stat/{file}");
        let counted = parse(&view.net(&path)?);
        let (entries, fulls) = counted.ok_or_else(|| Unread::new(format!("/proc/net/{path} has no entries"), ""))?;
        Ok(Some(Table { entries, fulls, thresh2, thresh3 }))
    };
    match view.first_netns(read) {
        Ok(Some(table)) => judge(family, table),
        Ok(None) => draft(family).ok("the kernel has no IPv6"),
        Err(unread) => {
            let reason = format!("{}; only the first network namespace shows it", unread.reason);
            let fix = "run `tracer doctor` in the host's network and pid namespaces".into();
            draft(family).unknown(Unread { reason, fix, ..unread })
        }
    }
}

/// `entries`, which is the same for each CPU, and the sum of `table_fulls`.
fn parse(text: &str) -> Option<(u64, Option<u64>)> {
    let counts = |wanted| of_each_cpu(text).filter(move |(name, _)| *name == wanted).map(|(_, count)| count);
    Some((counts("entries").next()?, counts("table_fulls").reduce(u64::saturating_add)))
}

/// The kernel's own `gc_thresh3`.
const DEFAULT: u64 = 1024;

/// If the kernel counts how often the table was full, this count decides. `entries` alone cannot: since 5.0 it includes
/// entries that do not count against the limit (permanent ones, externally learned ones). flannel makes one for each node.
/// A table that was full is ok again once somebody has made it larger than the kernel's default.
fn judge(family: &str, table: Table) -> Finding {
    let Table { entries, fulls, thresh2, thresh3 } = table;
    let mut draft = draft(family).with("entries", entries).with("gc_thresh2", thresh2).with("gc_thresh3", thresh3);
    let mut observed =
        format!("{entries} entries, permanent ones included, gc_thresh2 {thresh2}, gc_thresh3 {thresh3}");
    if let Some(fulls) = fulls.filter(|fulls| *fulls > 0) {
        draft = draft.with("table_fulls", fulls);
        observed.push_str(&format!("; the table was full {fulls} times since boot"));
    }
    let near = entries.saturating_mul(10) >= thresh3.saturating_mul(9);
    let was_full = fulls.is_some_and(|fulls| fulls > 0);
    if near && (was_full || fulls.is_none()) {
        draft.fail(observed, fix(family, table))
    } else if entries >= thresh2 || was_full && thresh3 <= DEFAULT {
        draft.warn(observed, fix(family, table))
    } else {
        draft.ok(observed)
    }
}

fn fix(family: &str, table: Table) -> Fix {
    let room = table.thresh3.saturating_mul(4).max(table.entries.saturating_mul(2)).max(8192);
    let name = |at: u32| format!("net.{family}.neigh.default.gc_thresh{at}");
    let (third, second) = (room.to_string(), (room / 2).to_string());
    Fix::sysctl(&[(&name(3), &third), (&name(2), &second)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    fn table(entries: u64, fulls: Option<u64>, thresh3: u64) -> Status {
        judge("ipv4", Table { entries, fulls, thresh2: thresh3 / 2, thresh3 }).status
    }

    #[test]
    fn few_entries_are_ok_many_warn_and_a_full_table_fails() {
        let of = |entries, fulls| table(entries, Some(fulls), 1024);
        let statuses = [of(20, 0), of(512, 0), of(20, 3), of(922, 3)];
        assert_eq!(statuses, [Status::Ok, Status::Warn, Status::Warn, Status::Fail]);
        assert_eq!(table(922, None, 1024), Status::Fail, "a kernel that does not count");
    }

    /// The numbers are those of a flannel cluster with 1100 nodes.
    #[test]
    fn permanent_entries_do_not_fill_the_table() {
        assert_eq!(table(1104, Some(0), 1024), Status::Warn);
    }

    #[test]
    fn a_table_that_was_made_larger_is_ok_before_the_next_boot() {
        assert_eq!((table(20, Some(3), 4096), table(2048, Some(3), 4096)), (Status::Ok, Status::Warn));
    }

    #[test]
    fn entries_and_fulls_are_parsed() {
        let text = "entries  allocs table_fulls\n0000000a  00000001 00000002\n0000000a  00000001 00000001\n";
        assert_eq!(parse(text), Some((10, Some(3))));
        assert_eq!(parse("entries allocs\n0000000a 1\n"), Some((10, None)));
        assert_eq!(parse(""), None);
    }
}
