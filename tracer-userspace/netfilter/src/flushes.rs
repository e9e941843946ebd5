//! Detects a process that removes rules in bulk from a table of nf_tables, which nft and iptables-nft use.
//!
//! The kernel reports each removed and each added rule, then the process that did it (`nf_tables_gen_notify`,
//! net/netfilter/nf_tables_api.c). It reports nothing about the legacy ip_tables.
//!
//! kube-proxy and CNIs add and remove rules of single Services and pods all the time, in chains that other rules jump to. The
//! rules of base chains, which jump into these, stay. So a table counts as flushed in three cases: it no longer exists, it was
//! created again with less than half of its rules, or its base chains lost all their rules.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use libc::{
    NFNLGRP_NFTABLES, NFT_MSG_DELRULE, NFT_MSG_DELTABLE, NFT_MSG_GETCHAIN, NFT_MSG_GETTABLE, NFT_MSG_NEWGEN,
    NFT_MSG_NEWRULE,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::NetfilterError;
use super::nft::{
    NFGENMSG, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_TABLE_NAME,
    family_name, get, kind, number,
};
use tracer_model::event::{BULK, FlushedRules, Remover, RulesFlushed};
use tracer_model::recent::remember;
use tracer_node::flushes::Burst;
use tracer_node::netlink::{Message, Netlink, attribute, messages, text};
use tracer_node::procfs::NodeNetns;
use tracer_node::removers::of_pid;

const NFTA_CHAIN_USE: u16 = 6;
const NFTA_GEN_PROC_PID: u16 = 2;
const NFTA_GEN_PROC_NAME: u16 = 3;
/// How many tables, and how many chains of each, the watch remembers.
const MOST_TABLES: usize = 64;
const MOST_CHAINS: usize = 256;
/// How many processes that changed rules the watch remembers.
const MOST_PROCESSES: usize = 16;

/// Listens to changes of the rules of a network namespace.
///
/// If thousands of rules are removed at once, most reports get lost. A larger buffer would slow down the removing process
/// (`yield` in `netlink_broadcast`, net/netlink/af_netlink.c). So the reports about processes have their own socket.
pub struct TablesWatch {
    rules: Netlink,
    processes: Netlink,
    removals: Removals,
}

impl TablesWatch {
    /// Subscribes in the node's network namespace; `None` if this kernel has no nfnetlink.
    pub fn open(node: &NodeNetns) -> Result<Option<Self>, NetfilterError> {
        let subscribe = || Netlink::subscribe(NETLINK_NETFILTER, &[NFNLGRP_NFTABLES as u32]);
        let both = || -> io::Result<_> { Ok((subscribe()?, subscribe()?.only(kind(NFT_MSG_NEWGEN))?)) };
        match node.enter(both)? {
            Ok((rules, processes)) => Ok(Some(Self { rules, processes, removals: Removals::default() })),
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
            Err(error) => Err(NetfilterError::Flushes(error)),
        }
    }

    /// Reads the reports that have arrived. Never blocks.
    pub fn read_reports(&mut self) {
        let now = Instant::now();
        self.rules.drain(|message| self.removals.see(message, now));
        self.processes.drain(|message| _ = message.and_then(|message| self.removals.note_process(message, of_pid)));
    }

    /// When to call [`take`](Self::take).
    pub fn due(&self) -> Option<Instant> {
        self.removals.tables.values().map(|removal| removal.burst.due()).min()
    }

    /// The tables that were flushed, if their rules did not come back.
    pub fn take(&mut self, node: &NodeNetns) -> Vec<RulesFlushed> {
        let over = self.removals.take(Instant::now()).into_iter();
        over.filter(|(_, removal)| removal.lost() >= BULK)
            .filter_map(|(table, removal)| self.flushed(node, table, removal))
            .collect()
    }

    /// Absent also if the table cannot be read.
    fn flushed(&self, node: &NodeNetns, table: Name, removal: Removal) -> Option<RulesFlushed> {
        let read = node.enter(|| removal.flushed(&table, &mut Netlink::open(NETLINK_NETFILTER)?));
        let (count, replaced) = read.ok()?.ok()??;
        let (family, table) = (family_name(table.0)?.to_owned(), table.1);
        Some(RulesFlushed {
            netns: node.netns,
            since_boot_ns: removal.burst.since_boot_ns,
            count,
            incomplete: removal.incomplete,
            rules: FlushedRules::Nftables { family, table, replaced },
            by: self.removals.remover(&removal),
        })
    }

    /// For `poll(2)`.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.rules, &self.processes].into_iter().map(Netlink::as_fd)
    }
}

/// Family and name of a table.
type Name = (u8, String);

#[derive(Default)]
struct Removals {
    tables: BTreeMap<Name, Removal>,
    /// The processes that changed rules, with the netlink port of their sockets.
    processes: VecDeque<(u32, Remover)>,
    /// Whether reports got lost.
    has_losses: bool,
}

struct Removal {
    burst: Burst,
    removed: usize,
    added: usize,
    was_deleted: bool,
    /// Reports got lost, so more rules may have been removed or added.
    incomplete: bool,
    /// How many rules were removed from each chain.
    chains: BTreeMap<String, usize>,
    /// How many rules each socket removed, minus those that it added.
    ports: BTreeMap<u32, i64>,
}

impl Removals {
    fn see(&mut self, message: Option<Message<'_>>, now: Instant) {
        self.has_losses |= message.is_none();
        if let Some(message) = message.filter(|it| it.kind & 0xff00 == kind(0)) {
            self.changed(message, now);
        }
    }

    fn changed(&mut self, message: Message<'_>, now: Instant) -> Option<()> {
        let (family, attrs) = (*message.payload.first()?, message.payload.get(NFGENMSG..)?);
        let name = |number| attribute(attrs, number).map(text);
        match (message.kind & 0xff).into() {
            NFT_MSG_DELRULE => {
                let (table, chain) = ((family, name(NFTA_RULE_TABLE)?), name(NFTA_RULE_CHAIN)?);
                if self.tables.len() < MOST_TABLES || self.tables.contains_key(&table) {
                    let removal = self.tables.entry(table).or_insert_with(|| Removal::begin(now));
                    removal.add_removed(chain, message.port, now);
                }
            }
            NFT_MSG_NEWRULE => {
                let removal = self.tables.get_mut(&(family, name(NFTA_RULE_TABLE)?))?;
                removal.added += 1;
                *removal.ports.get_mut(&message.port)? -= 1;
            }
            NFT_MSG_DELTABLE => self.tables.get_mut(&(family, name(NFTA_TABLE_NAME)?))?.was_deleted = true,
            _ => {}
        }
        Some(())
    }

    /// A transaction ended: remembers the process that made it.
    fn note_process(&mut self, message: Message<'_>, by: impl FnOnce(u32, String) -> Remover) -> Option<()> {
        let attrs = message.payload.get(NFGENMSG..)?;
        let pid = number(attrs, NFTA_GEN_PROC_PID)?.cast_unsigned();
        let comm = attribute(attrs, NFTA_GEN_PROC_NAME).map(text)?;
        remember(MOST_PROCESSES, &mut self.processes, (message.port, by(pid, comm)));
        Some(())
    }

    /// The process that removed most rules.
    fn remover(&self, removal: &Removal) -> Option<Remover> {
        let (port, _) = removal.ports.iter().max_by_key(|(_, lost)| **lost)?;
        self.processes.iter().rev().find(|(of, _)| of == port).map(|(_, by)| by.clone())
    }

    fn take(&mut self, now: Instant) -> Vec<(Name, Removal)> {
        let over = self.tables.extract_if(.., |_, removal| removal.burst.due() <= now);
        let over = over.map(|(table, removal)| (table, Removal { incomplete: self.has_losses, ..removal })).collect();
        self.has_losses &= !self.tables.is_empty();
        over
    }
}

/// A process of which only the report is known, for tests.
fn reported(pid: u32, comm: String) -> Remover {
    Remover { pid, comm, exe: None, ancestors: Vec::new() }
}

/// Reads arbitrary reports, for a fuzz target.
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut removals = Removals::default();
    messages(Some(bytes), &mut |message| {
        removals.see(message, Instant::now());
        message.map(|message| removals.note_process(message, reported));
    });
    assert!(removals.tables.len() <= MOST_TABLES && removals.processes.len() <= MOST_PROCESSES);
}

impl Removal {
    fn begin(now: Instant) -> Self {
        let (chains, ports) = (BTreeMap::new(), BTreeMap::new());
        Self { burst: Burst::begin(now), removed: 0, added: 0, was_deleted: false, incomplete: false, chains, ports }
    }

    fn add_removed(&mut self, chain: String, port: u32, now: Instant) {
        self.burst.extend(now);
        self.removed += 1;
        if self.chains.len() < MOST_CHAINS || self.chains.contains_key(&chain) {
            *self.chains.entry(chain).or_default() += 1;
        }
        if self.ports.len() < MOST_PROCESSES || self.ports.contains_key(&port) {
            *self.ports.entry(port).or_default() += 1;
        }
    }

    /// How many rules were removed and not added again.
    const fn lost(&self) -> usize {
        self.removed.saturating_sub(self.added)
    }

    /// How many rules were flushed, and whether their table was deleted; `None`: it was no flush. Reads the network namespace of
    /// the calling thread.
    fn flushed(&self, table: &Name, netlink: &mut Netlink) -> io::Result<Option<(usize, bool)>> {
        if get(netlink, NFT_MSG_GETTABLE, table.0, &[(NFTA_TABLE_NAME, &table.1)])?.is_none() {
            return Ok(Some((self.lost(), true)));
        }
        if self.was_deleted && !self.incomplete {
            return Ok((self.added < self.removed / 2).then(|| (self.lost(), true)));
        }
        let mut emptied = 0;
        for (chain, removed) in &self.chains {
            let names = [(NFTA_CHAIN_TABLE, table.1.as_str()), (NFTA_CHAIN_NAME, chain)];
            let chain = get(netlink, NFT_MSG_GETCHAIN, table.0, &names)?;
            emptied += if chain.is_some_and(|answer| is_empty_base(&answer)) { *removed } else { 0 };
        }
        Ok((emptied >= BULK).then(|| (self.lost(), false)))
    }
}

/// Whether this is a base chain without rules. Nothing can jump to a base chain, so only its rules count as uses.
fn is_empty_base(chain: &[u8]) -> bool {
    let attrs = chain.get(NFGENMSG..).unwrap_or_default();
    attribute(attrs, NFTA_CHAIN_HOOK).is_some() && number(attrs, NFTA_CHAIN_USE) == Some(0)
}

#[cfg(test)]
mod tests {
    use super::super::nft::attr;
    use super::*;
    use tracer_node::netlink::{push, push_text};

    const FLUSHER: (u32, &str) = (412, "nft");
    const OTHER: (u32, &str) = (7, "iptables-restor");

    fn message(of: i32, port: u32, payload: &[u8]) -> Message<'_> {
        Message { kind: kind(of), port, payload }
    }

    /// A report about a rule.
    fn rule(table: &str, chain: &str) -> Vec<u8> {
        let mut payload = vec![libc::AF_INET as u8, 0, 0, 0];
        push_text(&mut payload, NFTA_RULE_TABLE, table);
        push_text(&mut payload, NFTA_RULE_CHAIN, chain);
        payload
    }

    /// Removed and added rules, each with its chain, and the process that did it.
    type Transaction<'a> = (&'a [(i32, &'a str)], (u32, &'a str));

    fn removals(transactions: &[Transaction<'_>]) -> Removals {
        let (mut removals, now) = (Removals::default(), Instant::now());
        for (rules, (pid, comm)) in transactions {
            for (kind, chain) in *rules {
                removals.see(Some(message(*kind, *pid, &rule("nat", chain))), now);
            }
            let mut payload = vec![0; NFGENMSG];
            push(&mut payload, NFTA_GEN_PROC_PID, &pid.to_be_bytes());
            push_text(&mut payload, NFTA_GEN_PROC_NAME, comm);
            removals.note_process(message(NFT_MSG_NEWGEN, *pid, &payload), reported).expect("a process");
        }
        removals
    }

    fn of_nat(mut removals: Removals) -> Removal {
        removals.tables.remove(&(libc::AF_INET as u8, "nat".to_owned())).expect("the table")
    }

    #[test]
    fn the_process_that_removed_most_rules_is_named() {
        let (removed, added) = ((NFT_MSG_DELRULE, "A"), (NFT_MSG_NEWRULE, "A"));
        let removals =
            removals(&[(&[removed, added], OTHER), (&[removed, removed, removed], FLUSHER), (&[removed], OTHER)]);
        let removal = &removals.tables[&(libc::AF_INET as u8, "nat".to_owned())];
        assert_eq!((removal.lost(), removal.chains["A"]), (4, 5));
        assert_eq!(removals.remover(removal), Some(reported(FLUSHER.0, FLUSHER.1.to_owned())));
    }

    #[test]
    fn rules_that_are_added_again_are_not_lost_and_rules_only_added_make_no_removal() {
        let (removed, added) = ((NFT_MSG_DELRULE, "A"), (NFT_MSG_NEWRULE, "A"));
        assert_eq!(of_nat(removals(&[(&[removed, removed], FLUSHER), (&[added, added, added], OTHER)])).lost(), 0);
        assert!(removals(&[(&[added, added], FLUSHER)]).tables.is_empty());
    }

    #[test]
    fn tables_and_chains_are_bounded() {
        let (mut removals, now) = (Removals::default(), Instant::now());
        for n in 0..1000 {
            for (table, chain) in [("nat".to_owned(), format!("KUBE-SVC-{n}")), (format!("table-{n}"), "c".to_owned())]
            {
                removals.see(Some(message(NFT_MSG_DELRULE, n, &rule(&table, &chain))), now);
            }
        }
        assert_eq!(
            (removals.tables.len(), removals.tables[&(2, "nat".to_owned())].chains.len()),
            (MOST_TABLES, MOST_CHAINS)
        );
    }

    #[test]
    fn only_a_base_chain_without_uses_is_empty() {
        let chain = |attrs: &[(u16, u32)]| {
            let attr = |(number, value): &(u16, u32)| attr(*number, &value.to_be_bytes());
            [vec![2, 0, 0, 0], attrs.iter().flat_map(attr).collect()].concat()
        };
        let hook = (NFTA_CHAIN_HOOK, 0);
        assert!(is_empty_base(&chain(&[hook, (NFTA_CHAIN_USE, 0)])));
        assert!(!is_empty_base(&chain(&[hook, (NFTA_CHAIN_USE, 1)])) && !is_empty_base(&chain(&[(NFTA_CHAIN_USE, 0)])));
        assert!(!is_empty_base(&[2]) && !is_empty_base(&chain(&[hook])));
    }
}
