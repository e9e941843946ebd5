//! Settings of the node's network namespace that verdicts quote.
//!
//! `/proc/sys/net` shows the namespace of the task that opens it, so it is read from inside.

use std::fs;

use super::clock;
use super::enter::NetnsError;
use super::procfs::NodeNetns;
use tracer_model::event::NodeSettings;

/// Sysctls below `net` that an observation has besides the two port settings: path and name. None of them may change by
/// itself, because each change emits the settings again.
const QUOTED: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "net.ipv4.ip_forward"),
    ("ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ("ipv4/conf/all/rp_filter", "net.ipv4.conf.all.rp_filter"),
    ("ipv4/tcp_max_syn_backlog", "net.ipv4.tcp_max_syn_backlog"),
    ("ipv4/tcp_syncookies", "net.ipv4.tcp_syncookies"),
    ("core/somaxconn", "net.core.somaxconn"),
    ("netfilter/nf_conntrack_max", "net.netfilter.nf_conntrack_max"),
];

/// Reads the settings. A setting that does not exist is absent.
pub fn read(node: &NodeNetns) -> Result<NodeSettings, NetnsError> {
    node.enter(|| NodeSettings {
        local_port_range: local_port_range(),
        reserved_ports: sysctl("ipv4/ip_local_reserved_ports").as_deref().map(parse_ranges).unwrap_or_default(),
        sysctls: QUOTED.iter().filter_map(|(path, name)| Some(((*name).to_owned(), sysctl(path)?))).collect(),
        boot_to_wall_ns: Some(clock::steady_boot_to_wall_ns()),
    })
}

/// The ephemeral ports of the calling thread's namespace.
pub fn local_port_range() -> Option<(u16, u16)> {
    parse_range(&sysctl("ipv4/ip_local_port_range")?)
}

/// A setting of the calling thread's namespace, without the line break.
pub fn sysctl(path: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?;
    Some(text.trim().to_owned())
}

/// `32768\t60999`
pub fn parse_range(text: &str) -> Option<(u16, u16)> {
    let mut words = text.split_whitespace().map(str::parse);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

/// `8080,30000-32767`
pub fn parse_ranges(text: &str) -> Vec<(u16, u16)> {
    let parse = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    text.split(',').filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::super::procfs::node_netns;
    use super::*;

    #[test]
    fn port_ranges_of_the_kernel_are_parsed() {
        assert_eq!(parse_range("32768\t60999"), Some((32768, 60999)));
        assert_eq!(parse_range(""), None);
        assert_eq!(parse_ranges("8080,30000-32767"), [(8080, 8080), (30000, 32767)]);
        assert_eq!(parse_ranges(""), []);
    }

    #[test]
    fn this_node_has_a_port_range() {
        let settings = read(&node_netns(&[]).expect("own namespace")).expect("settings");
        assert!(settings.local_port_range.is_some());
        assert!(settings.sysctls.contains_key("net.ipv4.ip_forward"));
    }
}
