//! Tables of the legacy ip_tables, for IPv4 and IPv6, and the xtables matches that both iptables share.

use std::collections::HashMap;
use std::ops::Range;

use super::super::NetfilterError;
use super::super::legacy::{LAYOUTS, Layout, chain_name, entries, split_entry, tables_in_use};
use super::Tables;
use super::expression::{CT_INVALID, CT_NEW, prefix};
use super::tables::{Base, Chain, Rule, Table, Then};
use crate::event::{Backend, When};
use crate::sources::netlink::{field, text};

const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `struct ipt_getinfo`: valid hooks, hook entries, underflows.
const VALID_HOOKS: usize = 32;
const HOOK_ENTRIES: usize = 36;
const UNDERFLOWS: usize = 56;
/// Verdicts are written as `-NF_* - 1`; `XT_RETURN` is `-NF_REPEAT - 1`.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

/// The tables of the namespace of the calling thread.
pub(super) fn read() -> Tables {
    let mut tables = Vec::new();
    let mut truncated = false;
    for layout in &LAYOUTS {
        for name in tables_in_use(layout) {
            match entries(layout, &name) {
                Ok((info, table)) => tables.push(parse(layout, &name, &info, &table)),
                Err(NetfilterError::LegacyTooLarge { .. }) => truncated = true,
                Err(error) => return Err(error),
            }
        }
    }
    Ok((tables, truncated))
}

/// What is known of the bytes of a table before its rules are read.
struct Places<'a> {
    layout: &'a Layout,
    /// Offset of an entry to the name of the chain that begins there.
    chains: HashMap<usize, String>,
    /// Offset of the entry that holds a policy, to the number of the hook.
    policies: HashMap<usize, usize>,
}

fn parse(layout: &Layout, table_name: &str, info: &[u8], bytes: &[u8]) -> Table {
    let places = Places::find(layout, info, bytes);
    let mut chains: Vec<Chain> = Vec::new();
    for (at, entry) in each_entry(bytes, layout) {
        if let Some(name) = places.chains.get(&at.start) {
            chains.push(places.chain(name, priority(table_name, name), info));
        }
        let Some(chain) = chains.last_mut() else { continue };
        if chain_name(entry, layout).is_none() {
            places.add(chain, at.start, entry);
        }
    }
    for chain in &mut chains {
        chain.rules.retain(|rule| rule.then != Then::Nothing);
    }
    Table {
        backend: Backend::IptablesLegacy,
        family: layout.table_family,
        name: table_name.to_owned(),
        chains,
        maps: HashMap::new(),
    }
}

fn each_entry<'a>(bytes: &'a [u8], layout: &'a Layout) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let start = bytes.len() - rest.len();
        let (entry, after) = split_entry(rest, layout)?;
        rest = after;
        Some((start..start + entry.len(), entry))
    })
}

impl<'a> Places<'a> {
    fn find(layout: &'a Layout, info: &[u8], bytes: &[u8]) -> Self {
        let hooks = || (0..HOOKS.len()).filter(|hook| word(info, VALID_HOOKS) & 1 << hook != 0);
        let at = |table: usize, hook: usize| word(info, table + 4 * hook) as usize;
        let mut chains: HashMap<usize, String> =
            hooks().map(|hook| (at(HOOK_ENTRIES, hook), HOOKS[hook].to_owned())).collect();
        // A jump leads to the first rule of a chain, which follows the entry with its name.
        for (at, entry) in each_entry(bytes, layout) {
            chains.extend(chain_name(entry, layout).filter(|name| name != "ERROR").map(|name| (at.end, name)));
        }
        Self { layout, chains, policies: hooks().map(|hook| (at(UNDERFLOWS, hook), hook)).collect() }
    }

    fn chain(&self, name: &str, priority: i32, info: &[u8]) -> Chain {
        let hook = HOOKS.iter().position(|hook| *hook == name).filter(|hook| word(info, VALID_HOOKS) & 1 << hook != 0);
        let base = hook.map(|hook| Base { hook: HOOKS[hook], priority, drops: false, packets: None });
        Chain { name: name.to_owned(), base, rules: Vec::new() }
    }

    fn add(&self, chain: &mut Chain, at: usize, entry: &[u8]) {
        let packets = field(entry, self.layout.counters).map(u64::from_ne_bytes);
        if let (true, Some(base)) = (self.policies.contains_key(&at), &mut chain.base) {
            base.drops = verdict_of(entry, self.layout) == Some(DROP);
            base.packets = packets;
            return;
        }
        let number = Some(chain.rules.len() as u64 + 1);
        let mut rule = Rule { handle: number, packets, exact: true, ..Rule::default() };
        self.add_addresses(&mut rule, entry);
        add_matches(&mut rule, entry, self.layout);
        rule.then = self.then(entry);
        chain.rules.push(rule);
    }

    fn then(&self, entry: &[u8]) -> Then {
        match verdict_of(entry, self.layout) {
            Some(DROP) => Then::Drop,
            Some(ACCEPT) => Then::Accept,
            Some(RETURN) => Then::Return,
            Some(offset) => match usize::try_from(offset).ok().and_then(|offset| self.chains.get(&offset)) {
                Some(chain) if entry.get(self.layout.flags).is_some_and(|flags| flags & self.layout.goto != 0) => {
                    Then::Goto(chain.clone())
                }
                Some(chain) => Then::Jump(chain.clone()),
                None => Then::Nothing,
            },
            None if target(entry, self.layout).is_some_and(|(name, _)| is_reject(name.as_bytes())) => Then::Reject,
            None => Then::Nothing,
        }
    }

    /// Addresses, devices and the protocol stand in the entry itself.
    fn add_addresses(&self, rule: &mut Rule, entry: &[u8]) {
        let layout = self.layout;
        let addr = |at: usize| entry.get(at * layout.addr..(at + 1) * layout.addr).unwrap_or_default();
        let inverted = entry.get(layout.flags + 1).is_some_and(|flags| *flags != 0);
        let set = |value: &[u8], mask: &[u8]| mask.iter().any(|byte| *byte != 0).then(|| prefix(value, Some(mask)));
        let devices = entry.get(4 * layout.addr..layout.protocol).unwrap_or_default();
        rule.exact = !inverted && devices.iter().all(|byte| *byte == 0);
        if inverted {
            return;
        }
        let (src, dst) = (set(addr(0), addr(2)), set(addr(1), addr(3)));
        rule.exact &= src != Some(None) && dst != Some(None);
        let protocol = field(entry, layout.protocol).map(u16::from_ne_bytes).filter(|it| *it != 0);
        rule.when = When {
            v6: Some(layout.addr == 16),
            protocol: protocol.and_then(|it| u8::try_from(it).ok()),
            src: src.flatten(),
            dst: dst.flatten(),
            ..When::default()
        };
    }
}

/// `NF_IP_PRI_*`, linux/netfilter_ipv4.h
fn priority(table: &str, hook: &str) -> i32 {
    match (table, hook) {
        ("raw", _) => -300,
        ("mangle", _) => -150,
        ("nat", "PREROUTING" | "OUTPUT") => -100,
        ("nat", _) => 100,
        ("security", _) => 50,
        _ => 0,
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at).map_or(0, u32::from_ne_bytes)
}

/// Name and data of the target.
fn target<'a>(entry: &'a [u8], layout: &Layout) -> Option<(String, &'a [u8])> {
    let at = usize::from(u16::from_ne_bytes(field(entry, layout.target_offset)?));
    let target = entry.get(at..)?;
    Some((text(target.get(2..31)?), target.get(32..)?))
}

/// The verdict of a standard target.
fn verdict_of(entry: &[u8], layout: &Layout) -> Option<i32> {
    let (name, data) = target(entry, layout)?;
    name.is_empty().then(|| field(data, 0).map(i32::from_ne_bytes)).flatten()
}

fn add_matches(rule: &mut Rule, entry: &[u8], layout: &Layout) {
    let end = field(entry, layout.target_offset).map_or(0, |it| usize::from(u16::from_ne_bytes(it)));
    let mut matches = entry.get(layout.size..end).unwrap_or_default();
    while let Some(size) = field(matches, 0).map(u16::from_ne_bytes).map(usize::from).filter(|size| *size >= 32) {
        let (Some(name), Some(info)) = (matches.get(2..31), matches.get(32..size)) else { return };
        let name = text(name);
        rule.exact &= add_match(rule, name.as_bytes(), info);
        matches = matches.get(size..).unwrap_or_default();
    }
}

/// Takes in an xtables match; false if it asks for something that is not understood.
pub(super) fn add_match(rule: &mut Rule, name: &[u8], info: &[u8]) -> bool {
    match name {
        b"comment" => {
            rule.comment = Some(text(info));
            true
        }
        b"tcp" => tcp(&mut rule.when, info).unwrap_or(false),
        b"conntrack" => conntrack(&mut rule.when, info).unwrap_or(false),
        b"state" if word(info, 0) == CT_INVALID => {
            rule.when.invalid = true;
            true
        }
        _ => false,
    }
}

/// `struct xt_tcp`: source and destination ports from and to, option, flag mask, flags, inversions.
fn tcp(when: &mut When, info: &[u8]) -> Option<bool> {
    let port = |at| field(info, at).map(u16::from_ne_bytes);
    let (sport, dport) = ((port(0)?, port(2)?), (port(4)?, port(6)?));
    when.protocol = Some(super::super::TCP);
    if *info.get(11)? != 0 {
        return Some(false);
    }
    let single = |range: (u16, u16)| (range.0 == range.1).then_some(range.0);
    (when.sport, when.dport) = (single(sport), single(dport));
    let plain = |range: (u16, u16)| single(range).is_some() || range == (0, u16::MAX);
    Some(plain(sport) && plain(dport) && info.get(8) == Some(&0) && info.get(9) == Some(&0))
}

/// `struct xt_conntrack_mtinfo3`: match flags, inverted flags, states.
fn conntrack(when: &mut When, info: &[u8]) -> Option<bool> {
    let [flags, inverted, states] = [146, 148, 150].map(|at| field(info, at).map(u16::from_ne_bytes));
    let only = if flags? == 1 && inverted? == 0 { u32::from(states?) } else { 0 };
    (when.invalid, when.new) = (when.invalid || only == CT_INVALID, when.new || only == CT_NEW);
    Some(only == CT_INVALID || only == CT_NEW)
}

/// A target that answers and drops.
pub(super) fn is_reject(name: &[u8]) -> bool {
    name == b"REJECT"
}
