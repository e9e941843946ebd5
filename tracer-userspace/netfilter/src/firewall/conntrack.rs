//! Reads how full the connection tracking table of a network namespace is, and how many packets it dropped.

use std::fs;

use tracer_model::event::Conntrack;
use tracer_node::procfs::of_each_cpu;
use tracer_node::settings::sysctl;

const STATISTICS: &str = "/proc/thread-self/net/stat/nf_conntrack";

/// Reads the network namespace of the calling thread; `None` without conntrack.
pub(super) fn read() -> Option<Conntrack> {
    let value = |name: &str| sysctl(&format!("netfilter/{name}"))?.parse().ok();
    let table =
        Conntrack { count: value("nf_conntrack_count")?, max: value("nf_conntrack_max")?, ..Conntrack::default() };
    Some(add_statistics(table, &fs::read_to_string(STATISTICS).unwrap_or_default()))
}

/// Adds the statistics of all CPUs.
pub(crate) fn add_statistics(mut table: Conntrack, text: &str) -> Conntrack {
    for (name, value) in of_each_cpu(text) {
        let sum = match name {
            "drop" => &mut table.drop,
            "early_drop" => &mut table.early_drop,
            "invalid" => &mut table.invalid,
            _ => continue,
        };
        *sum = sum.saturating_add(value);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_of_all_cpus_are_added() {
        let text = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error\n\
                    00000003 00000000 00000000 00000000 00000002 00000000 00000000 00000001 00000000 00000000 0000000a 00000001 00000000\n\
                    00000003 00000000 00000000 00000000 00000001 00000000 00000000 00000001 00000000 00000000 00000001 00000000 00000000\n";
        let table = add_statistics(Conntrack::default(), text);
        assert_eq!((table.drop, table.early_drop, table.invalid), (11, 1, 3));
        assert_eq!(add_statistics(Conntrack::default(), "junk"), Conntrack::default());
    }
}
