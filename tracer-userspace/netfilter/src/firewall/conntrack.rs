//! Reads how full the connection tracking table of a network namespace is, and how many packets it dropped.

use std::{fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;
use tracer_model::event::Conntrack;
use tracer_node::netlink::{Netlink, attributes, field};
use tracer_node::procfs::of_each_cpu;
use tracer_node::settings::sysctl;

/// Absent if the kernel has no `CONFIG_NF_CONNTRACK_PROCFS`, as in Ubuntu and NixOS.
const STATISTICS: &str = "/proc/thread-self/net/stat/nf_conntrack";
/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_GET_STATS_CPU`.
const GET_STATS_CPU: u16 = 1 << 8 | 4;
/// `struct nfgenmsg`
const NFGENMSG: usize = 4;

/// Reads the network namespace of the calling thread; `None` without conntrack.
pub(super) fn read() -> Option<Conntrack> {
    let value = |name: &str| sysctl(&format!("netfilter/{name}"))?.parse().ok();
    let table =
        Conntrack { count: value("nf_conntrack_count")?, max: value("nf_conntrack_max")?, ..Conntrack::default() };
    Some(match fs::read_to_string(STATISTICS) {
        Ok(text) => add_statistics(table, &text),
        Err(_) => ask_statistics(table).unwrap_or(table),
    })
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
        add(sum, value);
    }
    table
}

/// Adds the same statistics by ctnetlink: the kernel sends a message for each CPU.
fn ask_statistics(mut table: Conntrack) -> io::Result<Conntrack> {
    let mut netlink = Netlink::open(NETLINK_NETFILTER)?;
    netlink.dump(GET_STATS_CPU, &[0; NFGENMSG], |message| add_message(&mut table, message))?;
    Ok(table)
}

/// Adds the statistics of one CPU (`ctnetlink_ct_stat_cpu_fill_info`, net/netfilter/nf_conntrack_netlink.c).
pub(crate) fn add_message(table: &mut Conntrack, message: &[u8]) {
    for (number, value) in attributes(message.get(NFGENMSG..).unwrap_or_default()) {
        // CTA_STATS_INVALID, CTA_STATS_DROP and CTA_STATS_EARLY_DROP.
        let sum = match number {
            4 => &mut table.invalid,
            10 => &mut table.drop,
            11 => &mut table.early_drop,
            _ => continue,
        };
        field(value, 0).into_iter().for_each(|value| add(sum, u32::from_be_bytes(value).into()));
    }
}

fn add(sum: &mut Option<u64>, value: u64) {
    *sum = Some(sum.unwrap_or_default().saturating_add(value));
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
        assert_eq!((table.drop, table.early_drop, table.invalid), (Some(11), Some(1), Some(3)));
        assert_eq!(add_statistics(Conntrack::default(), "junk"), Conntrack::default());
    }

    #[test]
    fn the_messages_of_all_cpus_are_added() {
        let mut table = Conntrack::default();
        let message = |drop: u8| [[0; NFGENMSG], [8, 0, 10, 0], [0, 0, 0, drop], [8, 0, 3, 0], [0, 0, 0, 9]].concat();
        [message(10), message(1), Vec::new()].iter().for_each(|message| add_message(&mut table, message));
        assert_eq!(table, Conntrack { drop: Some(11), ..Conntrack::default() });
    }

    #[test]
    #[ignore = "needs root and a kernel with CONFIG_NF_CONNTRACK_PROCFS"]
    fn procfs_and_ctnetlink_show_the_same_counters() {
        let text = fs::read_to_string(STATISTICS).expect("statistics");
        let asked = ask_statistics(Conntrack::default()).expect("an answer");
        let shown = add_statistics(Conntrack::default(), &text);
        assert_eq!((asked.drop, asked.early_drop), (shown.drop, shown.early_drop));
    }
}
