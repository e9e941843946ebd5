//! Tables of nf_tables: all chains and rules in two dumps, and the elements of verdict maps that a rule uses.

use std::collections::{BTreeSet, HashMap};
use std::io;

use super::super::NetfilterError;
use super::super::nft::{
    NFGENMSG, NFT_MSG_GETSETELEM, NFTA_DATA_VERDICT, NFTA_LIST_ELEM, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_USERDATA, comment,
    dump, open,
};
use super::Tables;
use super::expression::{Key, Parsed, parse_rule, verdict};
use super::tables::{Base, Chain, Rule, Table, Then};
use crate::event::{Backend, When};
use crate::sources::netlink::{Netlink, attribute, attributes, consistent, field, text};

const NFT_MSG_GETCHAIN: u16 = 4;
const NFT_MSG_GETRULE: u16 = 7;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_COUNTERS: u16 = 8;
const NFTA_HOOK_NUMBER: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_COUNTER_PACKETS: u16 = 2;
const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFT_SET_ELEM_INTERVAL_END: u32 = 1;

/// Rules that matter, and elements of verdict maps, kept while reading; beyond it nothing is.
const MAX_KEPT: usize = 200_000;
/// Verdict maps read.
const MAX_MAPS: usize = 256;

/// The tables of the namespace of the calling thread.
pub(super) fn read() -> Tables {
    consistent(read_once).map_err(|source| NetfilterError::Firewall { what: "the nftables rules", source })
}

fn read_once() -> io::Result<(Vec<Table>, bool)> {
    let mut reader = Reader::default();
    let Some(mut netlink) = open()? else { return Ok((Vec::new(), false)) };
    // Family 0: all of them.
    dump(&mut netlink, NFT_MSG_GETCHAIN, 0, &[], |message| _ = reader.add_chain(message))?;
    if reader.tables.is_empty() {
        return Ok((Vec::new(), false));
    }
    dump(&mut netlink, NFT_MSG_GETRULE, 0, &[], |message| _ = reader.add_rule(message))?;
    reader.read_maps(&mut netlink)?;
    Ok((reader.finish(), reader.truncated))
}

#[derive(Default)]
struct Reader {
    tables: Vec<Table>,
    /// Number of a table, and of a chain in it.
    table_at: HashMap<(u8, String), usize>,
    chain_at: HashMap<(usize, String), usize>,
    /// Verdict maps in use: table, name, and what their keys are made of.
    maps: Vec<(usize, String, Vec<Key>)>,
    asked: BTreeSet<(usize, String)>,
    kept: usize,
    truncated: bool,
}

impl Reader {
    fn table(&mut self, family: u8, name: String) -> Option<usize> {
        if let Some(at) = self.table_at.get(&(family, name.clone())) {
            return Some(*at);
        }
        let table = Table {
            backend: Backend::Nftables,
            family: family_name(family)?,
            name: name.clone(),
            chains: Vec::new(),
            maps: HashMap::new(),
        };
        self.tables.push(table);
        self.table_at.insert((family, name), self.tables.len() - 1);
        Some(self.tables.len() - 1)
    }

    fn add_chain(&mut self, message: &[u8]) -> Option<()> {
        let (family, attrs) = (*message.first()?, message.get(NFGENMSG..)?);
        let table = self.table(family, text(attribute(attrs, NFTA_CHAIN_TABLE)?))?;
        let name = text(attribute(attrs, NFTA_CHAIN_NAME)?);
        let chains = &mut self.tables[table].chains;
        self.chain_at.insert((table, name.clone()), chains.len());
        chains.push(Chain { name, base: base(family, attrs), rules: Vec::new() });
        Some(())
    }

    fn add_rule(&mut self, message: &[u8]) -> Option<()> {
        let family = *message.first()?;
        let parsed = parse_rule(family, message.get(NFGENMSG..)?)?;
        if parsed.rule.then == Then::Nothing {
            return None;
        }
        let table = *self.table_at.get(&(family, parsed.table.clone()))?;
        let chain = *self.chain_at.get(&(table, parsed.chain.clone()))?;
        if self.is_full() {
            return None;
        }
        self.note_map(table, &parsed);
        self.tables[table].chains[chain].rules.push(parsed.rule);
        Some(())
    }

    fn is_full(&mut self) -> bool {
        self.kept += 1;
        self.truncated |= self.kept > MAX_KEPT;
        self.kept > MAX_KEPT
    }

    fn note_map(&mut self, table: usize, parsed: &Parsed) {
        let Then::Map(name) = &parsed.rule.then else { return };
        if self.asked.insert((table, name.clone())) {
            self.maps.push((table, name.clone(), parsed.keys.clone()));
        }
    }

    fn read_maps(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        self.truncated |= self.maps.len() > MAX_MAPS;
        for (table, name, keys) in std::mem::take(&mut self.maps).into_iter().take(MAX_MAPS) {
            let names = [(NFTA_SET_ELEM_LIST_TABLE, self.tables[table].name.as_str()), (NFTA_SET_ELEM_LIST_SET, &name)];
            let family = family_number(self.tables[table].family);
            let mut map = Map { keys: &keys, elements: Vec::new(), intervals: false };
            dump(netlink, NFT_MSG_GETSETELEM, family, &names, |message| map.add(message))?;
            let elements = map.finish(&name);
            self.kept += elements.len();
            self.truncated |= self.kept > MAX_KEPT;
            self.tables[table].maps.insert(name, elements);
        }
        Ok(())
    }

    fn finish(&mut self) -> Vec<Table> {
        let mut tables = std::mem::take(&mut self.tables);
        for table in &mut tables {
            if is_iptables(table) {
                table.backend = Backend::IptablesNft;
            }
            table.resolve_elements();
        }
        tables
    }
}

/// iptables-nft keeps to the names of the tables and chains of ip_tables.
fn is_iptables(table: &Table) -> bool {
    const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
    const CHAINS: [&str; 5] = ["INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"];
    let mut bases = table.chains.iter().filter(|chain| chain.base.is_some());
    matches!(table.family, "ip" | "ip6")
        && TABLES.contains(&table.name.as_str())
        && bases.all(|chain| CHAINS.contains(&chain.name.as_str()))
}

/// The elements of one verdict map.
struct Map<'a> {
    keys: &'a [Key],
    elements: Vec<Rule>,
    /// Keys are ends of ranges, not values.
    intervals: bool,
}

impl Map<'_> {
    fn add(&mut self, message: &[u8]) {
        let list = message.get(NFGENMSG..).and_then(|rest| attribute(rest, NFTA_SET_ELEM_LIST_ELEMENTS));
        for (_, element) in list.into_iter().flat_map(attributes).filter(|(number, _)| *number == NFTA_LIST_ELEM) {
            self.intervals |= is_interval(element);
            if self.elements.len() < MAX_KEPT {
                self.elements.extend(self.element(element));
            }
        }
    }

    fn element(&self, element: &[u8]) -> Option<Rule> {
        let then = verdict(attribute(attribute(element, NFTA_SET_ELEM_DATA)?, NFTA_DATA_VERDICT)?)?;
        let key = attribute(element, NFTA_SET_ELEM_KEY).and_then(|key| attribute(key, 1));
        let when = key.and_then(|key| Key::conditions(self.keys, key));
        let comment = attribute(element, NFTA_SET_ELEM_USERDATA).and_then(comment);
        Some(Rule { when: when.unwrap_or_default(), exact: when.is_some(), then, comment, ..Rule::default() })
    }

    fn finish(mut self, name: &str) -> Vec<Rule> {
        for element in &mut self.elements {
            if self.intervals {
                (element.when, element.exact) = Default::default();
            }
            if name.starts_with("no-endpoint-") {
                element.comment = Some(no_endpoints(element));
            }
        }
        self.elements
    }
}

/// What kube-proxy would comment in its iptables mode. It rejects for a Service without endpoints, and drops where only other
/// nodes have some and a traffic policy keeps to this one (pkg/proxy/nftables, `syncProxyRules`).
fn no_endpoints(element: &Rule) -> String {
    let service = element.comment.as_deref().unwrap_or("a Service");
    let what = if element.then == Then::Drop { "local endpoints" } else { "endpoints" };
    format!("{service} has no {what}")
}

fn is_interval(element: &[u8]) -> bool {
    let flags = attribute(element, NFTA_SET_ELEM_FLAGS).and_then(|flags| field(flags, 0)).map_or(0, u32::from_be_bytes);
    flags & NFT_SET_ELEM_INTERVAL_END != 0 || attribute(element, NFTA_SET_ELEM_KEY_END).is_some()
}

impl Table {
    /// An element that leads to a chain which only drops or rejects does that itself, and keeps its own conditions.
    fn resolve_elements(&mut self) {
        let ends: HashMap<String, Then> = self.chains.iter().filter_map(end_of).collect();
        for element in self.maps.values_mut().flatten() {
            if let Then::Jump(target) | Then::Goto(target) = &element.then
                && let Some(end) = ends.get(target)
            {
                element.then = end.clone();
            }
        }
    }
}

fn end_of(chain: &Chain) -> Option<(String, Then)> {
    let [only] = chain.rules.as_slice() else { return None };
    let unconditional = only.exact && When { v6: None, ..only.when } == When::default();
    (unconditional && matches!(only.then, Then::Drop | Then::Reject)).then(|| (chain.name.clone(), only.then.clone()))
}

fn base(family: u8, attrs: &[u8]) -> Option<Base> {
    let hook = attribute(attrs, NFTA_CHAIN_HOOK)?;
    let number = u32::from_be_bytes(field(attribute(hook, NFTA_HOOK_NUMBER)?, 0)?);
    let priority = attribute(hook, NFTA_HOOK_PRIORITY).and_then(|it| field(it, 0)).map_or(0, i32::from_be_bytes);
    let policy = attribute(attrs, NFTA_CHAIN_POLICY).and_then(|it| field(it, 0)).map(u32::from_be_bytes);
    let packets = attribute(attrs, NFTA_CHAIN_COUNTERS).and_then(packets);
    Some(Base { hook: hook_name(family, number), priority, drops: policy == Some(0), packets })
}

/// The packets of a counter.
pub(super) fn packets(counter: &[u8]) -> Option<u64> {
    field(attribute(counter, NFTA_COUNTER_PACKETS)?, 0).map(u64::from_be_bytes)
}

fn hook_name(family: u8, number: u32) -> &'static str {
    match (family_name(family), number) {
        (Some("bridge"), _) => "BRIDGE",
        (Some("netdev"), 0) | (_, 5) => "INGRESS",
        (Some("netdev"), _) => "EGRESS",
        (_, 0) => "PREROUTING",
        (_, 1) => "INPUT",
        (_, 2) => "FORWARD",
        (_, 3) => "OUTPUT",
        _ => "POSTROUTING",
    }
}

/// `NFPROTO_*` of linux/netfilter.h, those that carry TCP.
const NAMED_FAMILIES: [(u8, &str); 5] = [(1, "inet"), (2, "ip"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

fn family_name(family: u8) -> Option<&'static str> {
    NAMED_FAMILIES.iter().find(|(number, _)| *number == family).map(|(_, name)| *name)
}

fn family_number(name: &str) -> u8 {
    NAMED_FAMILIES.iter().find(|(_, known)| *known == name).map_or(0, |(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_proxy_drops_for_want_of_local_endpoints_and_rejects_for_want_of_any() {
        let comments = |name, then: Then, comment: Option<&str>| {
            let element = Rule { then, comment: comment.map(str::to_owned), ..Rule::default() };
            Map { keys: &[], elements: vec![element], intervals: false }.finish(name).remove(0).comment
        };
        let said = |text: &str| Some(text.to_owned());
        let reject = || Then::Goto("reject-chain".into());
        let cart = Some("shop/cart:http");
        for map in ["no-endpoint-services", "no-endpoint-nodeports"] {
            assert_eq!(comments(map, reject(), cart), said("shop/cart:http has no endpoints"));
            assert_eq!(comments(map, Then::Drop, cart), said("shop/cart:http has no local endpoints"));
        }
        assert_eq!(comments("no-endpoint-services", reject(), None), said("a Service has no endpoints"));
        assert_eq!(comments("firewall-ips", Then::Drop, cart), said("shop/cart:http"));
    }
}
