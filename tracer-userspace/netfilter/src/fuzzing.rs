//! Fuzz targets for the parsers of the kernel's tables.

use super::firewall::ruleset::Table;
use super::firewall::{add_tables, conntrack, legacy, nft};
use super::{flushes, ipvs, legacy as xtables, node_ports};
use tracer_model::event::{Conntrack, Firewall, Flow, LinkState, Netns, ObservationKind};
use tracer_model::fuzzing::check_recorded;
use tracer_node::links::Link;
use tracer_node::netlink::{Progress, read_answers};

/// Parses netlink messages one after another: answers and reports of nf_tables, reports of rtnetlink, and the statistics
/// of connection tracking.
pub fn nftables(bytes: &[u8]) {
    let _ = read_answers(bytes, 1, &mut Progress::default(), &mut |_| ());
    let (tables, truncated) = nft::tables_of(bytes);
    flatten(&tables, truncated);
    let _ = (node_ports::in_chains(&tables), node_ports::in_maps(&tables));
    conntrack::add_message(&mut Conntrack::default(), bytes);
    flushes::fuzz(bytes);
    tracer_node::flushes::fuzz_reports(bytes);
}

/// Parses a table of x_tables: a byte for the family, `struct ipt_getinfo`, entries.
pub fn xtables(bytes: &[u8]) {
    let Some((family, rest)) = bytes.split_first() else { return };
    let Some((info, entries)) = rest.split_at_checked(xtables::GETINFO) else { return };
    let layout = &xtables::LAYOUTS[usize::from(family & 1)];
    let tables = [legacy::parse(layout, "filter", info, entries)];
    flatten(&tables, false);
    let _ = node_ports::in_chains(&tables);
}

/// Parses `/proc/net/ip_vs` and the statistics of connection tracking.
pub fn proc(bytes: &[u8], text: &str) {
    let addrs = ["10.23.77.129", "fd00::129"].into_iter().flat_map(str::parse).collect();
    let state = LinkState { name: "eth0".into(), addrs, ..LinkState::default() };
    let node = Link { state, ..Link::default() };
    if let Ok((ports, without)) = ipvs::parse(bytes, &[node]) {
        assert!(ports.len() + without.len() <= 2 * text.lines().count(), "at most one service for each line");
    }
    let _ = conntrack::add_statistics(Conntrack::default(), text);
}

/// Makes an observation of what these tables can do to a packet.
fn flatten(tables: &[Table], truncated: bool) {
    let (Ok(src), Ok(dst)) = ("10.88.0.1:0".parse(), "10.88.0.2:8080".parse()) else { return };
    let mut firewall = Firewall { truncated, ..Firewall::empty(Netns(1)) };
    add_tables(tables, Flow { src, dst }, &mut firewall);
    check_recorded(ObservationKind::Firewall(Box::new(firewall)));
}
