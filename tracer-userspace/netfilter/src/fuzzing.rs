//! Fuzz targets for the parsers of the kernel's tables.

pub use super::firewall::fuzzing::{nftables, xtables};
use super::{firewall, ipvs};
use tracer_model::event::LinkState;
use tracer_node::links::Link;

/// Parses `/proc/net/ip_vs` and the statistics of connection tracking.
pub fn proc(bytes: &[u8], text: &str) {
    let addrs = ["10.23.77.129", "fd00::129"].into_iter().flat_map(str::parse).collect();
    let node = Link { state: LinkState { name: "eth0".into(), addrs, ..LinkState::default() }, kind: None };
    if let Ok((ports, without)) = ipvs::parse(bytes, &[node]) {
        assert!(ports.len() + without.len() <= 2 * text.lines().count(), "at most one service for each line");
    }
    firewall::fuzzing::statistics(text);
}
