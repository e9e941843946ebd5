//! Finds what can drop or reject a packet in a network namespace: nftables (with iptables-nft) over nfnetlink, the legacy
//! ip_tables over getsockopt, and a full connection tracking table.
//!
//! Each backend is read into a [`ruleset`]. Then tracer follows the chains from their hooks.

mod condition;
pub(crate) mod conntrack;
mod drops;
mod expression;
pub(crate) mod legacy;
pub(crate) mod nft;
mod nft_elements;
mod path;
pub(crate) mod ruleset;
pub(super) mod survey;
mod xtables;

use std::path::Path;

use super::NetfilterError;
use drops::{Rules, Steps};
use ruleset::Table;
use tracer_model::event::{Firewall, Flow, Netns};
use tracer_node::clock::{boot_ns, thread_cpu_ns};
use tracer_node::enter::in_netns;

pub fn read(path: &Path, netns: Netns, flow: Flow) -> Firewall {
    let timed = || {
        let (began, used) = (boot_ns(), thread_cpu_ns());
        let firewall = of_thread(netns, flow);
        Firewall { began_boot_ns: Some(began), took_ns: thread_cpu_ns().saturating_sub(used), ..firewall }
    };
    match in_netns(path, timed) {
        Ok(firewall) => firewall,
        Err(error) => Firewall { problems: vec![error.to_string()], ..Firewall::empty(netns) },
    }
}

/// The answer for a namespace that no path leads to.
pub fn unreachable(netns: Netns) -> Firewall {
    Firewall { problems: vec!["no name and no process leads to that namespace".to_owned()], ..Firewall::empty(netns) }
}

/// Reads the network namespace of the calling thread.
fn of_thread(netns: Netns, flow: Flow) -> Firewall {
    let (tables, truncated, problems) = read_tables();
    let problems = problems.iter().map(ToString::to_string).collect();
    let mut firewall = Firewall { conntrack: conntrack::read(), truncated, problems, ..Firewall::empty(netns) };
    add_tables(&tables, flow, &mut firewall);
    firewall
}

/// The tables of both backends, whether some rules were not read, and what could not be read.
fn read_tables() -> (Vec<Table>, bool, Vec<NetfilterError>) {
    let (mut all, mut truncated, mut problems) = (Vec::new(), false, Vec::new());
    for read in [nft::read(), legacy::read()] {
        match read {
            Ok((tables, cut)) => {
                truncated |= cut;
                all.extend(tables);
            }
            Err(error) => problems.push(error),
        }
    }
    (all, truncated, problems)
}

/// Adds what these tables can do to a packet of this flow.
pub(crate) fn add_tables(tables: &[Table], flow: Flow, firewall: &mut Firewall) {
    let (steps, mut rules) = (Steps::new(), Rules::new(flow));
    tables.iter().for_each(|table| table.flatten(&steps, &mut rules));
    rules.write_to(tables, firewall);
}

/// The tables, and whether some rules were not read.
type Tables = Result<(Vec<Table>, bool), NetfilterError>;

#[cfg(test)]
mod real_tests;
