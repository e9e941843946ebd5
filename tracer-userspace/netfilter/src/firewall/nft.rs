//! Reads the tables of nf_tables: dumps of all tables, chains and rules, then the elements of the verdict maps and sets that
//! rules use.

use std::collections::{BTreeSet, HashMap};
use std::io;

use libc::{
    NF_DROP, NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETSETELEM, NFT_MSG_GETTABLE, NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE, NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE,
};

use super::super::NetfilterError;
use super::super::nft::{
    FAMILIES, NFGENMSG, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE,
    NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_TABLE, NFTA_TABLE_NAME, dump, family_name, family_number, number, open,
};
use super::Tables;
use super::expression::{packets, parse_rule};
use super::legacy::HOOKS;
use super::nft_elements::{Map, Room, add_keys};
use super::ruleset::{Base, Chain, Elements, Key, Rule, Table, Test, Then};
use tracer_model::event::{Backend, When};
use tracer_node::clock::thread_cpu_ns;
use tracer_node::netlink::{Netlink, attribute, consistent, field, messages, text};

const NFTA_TABLE_FLAGS: u16 = 2;
/// The chains of the table are not attached to their hooks.
const NFT_TABLE_F_DORMANT: i32 = 1;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_COUNTERS: u16 = 8;
const NFTA_HOOK_NUMBER: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_CHAIN_TYPE: u16 = 7;

/// The limits for sets: their number, the bytes of their elements, the CPU time.
const MAX_SETS: usize = 1 << 10;
const MAX_SET_BYTES: usize = 8 << 20;
const SETS_CPU_NS: u64 = 500_000_000;
/// The limit of verdict maps, each of which needs a request: kube-proxy has one for each port of a Service with endpoints.
const MAX_MAPS: usize = 1 << 14;
/// The CPU time for verdict maps: for each request the kernel searches the list of all sets of the table (`nft_set_lookup`).
const MAPS_CPU_NS: u64 = 2_000_000_000;

/// Reads the tables of the network namespace of the calling thread. If the rules change meanwhile, it reads once more. On a
/// busy node they may change each time: then what it has found counts as a part of the rules.
pub(super) fn read() -> Tables {
    let mut is_first = true;
    let read = || {
        let (tables, truncated, changed) = read_once()?;
        match changed && std::mem::take(&mut is_first) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok((tables, truncated || changed)),
        }
    };
    consistent(read).map_err(|source| NetfilterError::Nft { what: "the nftables rules", source })
}

/// The tables, whether rules are missing, and whether the rules changed meanwhile.
fn read_once() -> io::Result<(Vec<Table>, bool, bool)> {
    let mut reader = Reader::default();
    let Some(mut netlink) = open()? else { return Ok((Vec::new(), false, false)) };
    let mut all = |reader: &mut Reader, message, add: fn(&mut Reader, &[u8]) -> Option<()>| {
        // Family 0 selects all families.
        dump(&mut netlink, message, 0, &[], |answer| {
            reader.generation.note(answer);
            add(reader, answer);
        })
    };
    all(&mut reader, NFT_MSG_GETTABLE, Reader::add_table)?;
    all(&mut reader, NFT_MSG_GETCHAIN, Reader::add_chain)?;
    if reader.tables.is_empty() {
        return Ok((Vec::new(), reader.room.full, false));
    }
    all(&mut reader, NFT_MSG_GETRULE, Reader::add_rule)?;
    reader.read_maps(&mut netlink)?;
    reader.read_sets(&mut netlink)?;
    let (tables, changed) = (reader.finish(), reader.generation.changed);
    Ok((tables, reader.truncated || reader.room.full, changed))
}

/// The generation of the rules: a transaction may change them between two dumps.
#[derive(Default)]
struct Generation {
    first: Option<[u8; 2]>,
    changed: bool,
}

impl Generation {
    /// Notes `res_id` of an answer (`struct nfgenmsg`), which has the lower half of the generation.
    fn note(&mut self, answer: &[u8]) {
        let number = field(answer, 2);
        self.first = self.first.or(number);
        self.changed |= number != self.first;
    }
}

/// Reads only these maps of the table `kube-proxy`. Their keys are protocol and port; in the map of addresses, the address
/// comes before them.
pub(crate) fn read_proxy_maps(of_ports: [&str; 2], of_addresses: &str) -> Result<Vec<Table>, NetfilterError> {
    let read = |reader: &mut Reader, netlink: &mut Netlink, family| {
        let Some(table) = reader.table(family, "kube-proxy".to_owned()) else { return Ok(()) };
        let address = Key::DestinationAddress(if i32::from(family) == libc::AF_INET { 4 } else { 16 });
        let keys = [address, Key::Protocol, Key::DestinationPort];
        of_ports.into_iter().try_for_each(|map| reader.read_map(netlink, table, map, &keys[1..]).map(drop))?;
        reader.read_map(netlink, table, of_addresses, &keys).map(drop)
    };
    read_for_each_family("kube-proxy's nftables maps of the node", read)
}

/// Reads the rules of these chains of `nat` only.
pub(crate) fn read_nat_chains(names: [&str; 2]) -> Result<Vec<Table>, NetfilterError> {
    let read_chain = |reader: &mut Reader, netlink: &mut Netlink, family, name: &str| {
        reader.begin_chain(family, "nat".to_owned(), name.to_owned(), None);
        let names = [(NFTA_RULE_TABLE, "nat"), (NFTA_RULE_CHAIN, name)];
        dump(netlink, NFT_MSG_GETRULE, family, &names, |message| _ = reader.add_rule(message)).map(drop)
    };
    let read = |reader: &mut Reader, netlink: &mut Netlink, family| {
        names.into_iter().try_for_each(|name| read_chain(reader, netlink, family, name))
    };
    read_for_each_family("kube-proxy's chains of the node", read)
}

fn read_for_each_family(
    what: &'static str,
    mut read: impl FnMut(&mut Reader, &mut Netlink, u8) -> io::Result<()>,
) -> Result<Vec<Table>, NetfilterError> {
    let read = || {
        let Some(mut netlink) = open()? else { return Ok(Vec::new()) };
        let mut reader = Reader::default();
        FAMILIES.into_iter().try_for_each(|family| read(&mut reader, &mut netlink, family))?;
        Ok(reader.tables)
    };
    consistent(read).map_err(|source| NetfilterError::Nft { what, source })
}

/// Parses the kernel's answers, for a fuzz target. Each map gets all elements.
pub(crate) fn tables_of(answers: &[u8]) -> (Vec<Table>, bool) {
    let each = |of: i32, take: &mut dyn FnMut(&[u8])| {
        messages(Some(answers), &mut |message| match message {
            Some(it) if i32::from(it.kind & 0xff) == of => take(it.payload),
            _ => {}
        });
    };
    let mut reader = Reader::default();
    each(NFT_MSG_NEWTABLE, &mut |message| _ = reader.add_table(message));
    each(NFT_MSG_NEWCHAIN, &mut |message| _ = reader.add_chain(message));
    each(NFT_MSG_NEWRULE, &mut |message| _ = reader.add_rule(message));
    for (table, name, keys) in std::mem::take(&mut reader.maps) {
        let mut map = Map::new(&keys, &mut reader.room);
        each(NFT_MSG_NEWSETELEM, &mut |message| map.add(message));
        reader.tables[table].keep_map(&name, map.finish());
    }
    for (table, name) in reader.sets_to_read() {
        let mut elements = Elements::default();
        each(NFT_MSG_NEWSETELEM, &mut |message| add_keys(message, &mut elements, &mut reader.room));
        reader.tables[table].sets.insert(name, elements);
    }
    (reader.finish(), reader.truncated || reader.room.full)
}

/// Memory of a chain or a table. Its name counts twice, because it is also the key in an index.
const fn bytes_of<T>(name: &str) -> usize {
    size_of::<T>() + 2 * (size_of::<String>() + name.len())
}

#[derive(Default)]
struct Reader {
    tables: Vec<Table>,
    /// Indices of tables, and of chains in their table.
    table_at: HashMap<(u8, String), usize>,
    chain_at: HashMap<(usize, String), usize>,
    dormant: BTreeSet<usize>,
    /// Verdict maps in use: table, name, and the fields of their keys. In the order of the rules: kube-proxy's few named
    /// maps come before the many anonymous ones, and a limit may end the reading.
    maps: Vec<(usize, String, Vec<Key>)>,
    noted: BTreeSet<(usize, String)>,
    sets: BTreeSet<(usize, String)>,
    /// Sets that rules change: what they contain now is not what they contained when the packet was dropped.
    written: BTreeSet<(usize, String)>,
    room: Room,
    truncated: bool,
    generation: Generation,
}

impl Reader {
    fn table(&mut self, family: u8, name: String) -> Option<usize> {
        if let Some(at) = self.table_at.get(&(family, name.clone())) {
            return Some(*at);
        }
        self.room.take(bytes_of::<Table>(&name)).then_some(())?;
        self.tables.push(Table::new(Backend::Nftables, family_name(family)?, name.clone(), Vec::new()));
        self.table_at.insert((family, name), self.tables.len() - 1);
        Some(self.tables.len() - 1)
    }

    /// Notes a table without effect (dormant). Other tables are known by their chains.
    fn add_table(&mut self, message: &[u8]) -> Option<()> {
        let (family, attrs) = (*message.first()?, message.get(NFGENMSG..)?);
        (number(attrs, NFTA_TABLE_FLAGS)? & NFT_TABLE_F_DORMANT != 0).then_some(())?;
        let table = self.table(family, attribute(attrs, NFTA_TABLE_NAME).map(text)?)?;
        self.dormant.insert(table);
        Some(())
    }

    fn add_chain(&mut self, message: &[u8]) -> Option<()> {
        let (family, attrs) = (*message.first()?, message.get(NFGENMSG..)?);
        let [table, name] = [NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME].map(|name| attribute(attrs, name).map(text));
        self.begin_chain(family, table?, name?, base(family, attrs))
    }

    /// Adds an empty chain. Its rules follow.
    fn begin_chain(&mut self, family: u8, table: String, name: String, base: Option<Base>) -> Option<()> {
        let table = self.table(family, table)?;
        self.room.take(bytes_of::<Chain>(&name)).then_some(())?;
        let base = base.filter(|_| !self.dormant.contains(&table));
        let chains = &mut self.tables[table].chains;
        self.chain_at.insert((table, name.clone()), chains.len());
        chains.push(Chain { name, base, rules: Vec::new() });
        Some(())
    }

    fn add_rule(&mut self, message: &[u8]) -> Option<()> {
        if self.room.full {
            return None;
        }
        let family = *message.first()?;
        let parsed = parse_rule(family, message.get(NFGENMSG..)?)?;
        let table = *self.table_at.get(&(family, parsed.table.clone()))?;
        if let Some(set) = parsed.writes {
            if self.written.len() < MAX_SETS {
                self.written.insert((table, set));
            } else {
                // It may be read, and exclude a rule that dropped the packet.
                self.truncated = true;
            }
        }
        if parsed.rule.then == Then::Nothing {
            return None;
        }
        let chain = *self.chain_at.get(&(table, parsed.chain.clone()))?;
        self.room.take(parsed.rule.bytes()).then_some(())?;
        self.note_map(table, &parsed.rule);
        self.note_sets(table, &parsed.rule);
        self.tables[table].chains[chain].rules.push(parsed.rule);
        Some(())
    }

    fn note_sets(&mut self, table: usize, rule: &Rule) {
        for test in &rule.rest {
            if let Test::Set { set, .. } = test
                && self.sets.len() < MAX_SETS
            {
                self.sets.insert((table, set.clone()));
            }
        }
    }

    fn note_map(&mut self, table: usize, rule: &Rule) {
        let Then::Map(name, keys) = &rule.then else { return };
        let place = (table, name.clone());
        if self.noted.contains(&place) {
            return;
        }
        let bytes = bytes_of::<(usize, String, Vec<Key>)>(name) + size_of_val(keys.as_slice());
        if self.maps.len() >= MAX_MAPS || !self.room.take(bytes) {
            self.truncated = true;
            return;
        }
        self.noted.insert(place);
        self.maps.push((table, name.clone(), keys.clone()));
    }

    fn sets_to_read(&mut self) -> BTreeSet<(usize, String)> {
        &self.sets - &self.written
    }

    /// Reads sets until a limit is reached. It is then not known whether the other sets contain a packet.
    fn read_sets(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        let (began, mut room) = (thread_cpu_ns(), Room { bytes: MAX_SET_BYTES, full: false });
        for (table, name) in self.sets_to_read() {
            if room.full || thread_cpu_ns().saturating_sub(began) > SETS_CPU_NS {
                break;
            }
            let mut elements = Elements::default();
            let exists = self.tables[table].dump_set(netlink, &name, |message| {
                self.generation.note(message);
                add_keys(message, &mut elements, &mut room);
            })?;
            self.generation.changed |= !exists;
            if !room.full {
                self.tables[table].sets.insert(name, elements);
            }
        }
        Ok(())
    }

    fn read_maps(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        let began = thread_cpu_ns();
        for (table, name, keys) in std::mem::take(&mut self.maps) {
            self.truncated |= thread_cpu_ns().saturating_sub(began) > MAPS_CPU_NS;
            if self.room.full || self.truncated {
                break;
            }
            let exists = self.read_map(netlink, table, &name, &keys)?;
            self.generation.changed |= !exists;
        }
        Ok(())
    }

    /// Returns whether the map exists.
    fn read_map(&mut self, netlink: &mut Netlink, table: usize, name: &str, keys: &[Key]) -> io::Result<bool> {
        let mut map = Map::new(keys, &mut self.room);
        let exists = self.tables[table].dump_set(netlink, name, |message| {
            self.generation.note(message);
            map.add(message);
        })?;
        self.tables[table].keep_map(name, map.finish());
        Ok(exists)
    }

    fn finish(&mut self) -> Vec<Table> {
        let mut tables = std::mem::take(&mut self.tables);
        for table in &mut tables {
            if is_iptables(table) {
                table.backend = Backend::IptablesNft;
            }
            table.name_elements();
            table.resolve_elements();
        }
        tables
    }
}

/// Whether this is a table of iptables-nft, which uses the names of the tables and chains of ip_tables.
fn is_iptables(table: &Table) -> bool {
    const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
    let mut bases = table.chains.iter().filter(|chain| chain.base.is_some());
    matches!(table.family, "ip" | "ip6")
        && TABLES.contains(&table.name.as_str())
        && bases.all(|chain| HOOKS.contains(&chain.name.as_str()))
}

/// The comment that kube-proxy writes in its iptables mode. It rejects packets of a Service without endpoints. It drops packets
/// if only other nodes have endpoints and a traffic policy allows only local ones (pkg/proxy/nftables, `syncProxyRules`).
fn no_endpoints(element: &Rule) -> String {
    let service = element.comment.as_deref().unwrap_or("a Service");
    let what = if element.then == Then::Drop { "local endpoints" } else { "endpoints" };
    format!("{service} has no {what}")
}

impl Table {
    fn dump_set(&self, netlink: &mut Netlink, name: &str, each: impl FnMut(&[u8])) -> io::Result<bool> {
        let names = [(NFTA_SET_ELEM_LIST_TABLE, self.name.as_str()), (NFTA_SET_ELEM_LIST_SET, name)];
        dump(netlink, NFT_MSG_GETSETELEM, family_number(self.family), &names, each)
    }

    fn keep_map(&mut self, name: &str, (elements, rules): (Elements, Vec<Rule>)) {
        self.sets.insert(name.to_owned(), elements);
        self.maps.insert(name.to_owned(), rules);
    }

    /// Comments the elements of the maps of Services without endpoints, as kube-proxy comments its iptables rules.
    fn name_elements(&mut self) {
        let maps = self.maps.iter_mut().filter(|(name, _)| name.starts_with("no-endpoint-"));
        for element in maps.flat_map(|(_, elements)| elements) {
            element.comment = Some(no_endpoints(element));
        }
    }

    /// Replaces a jump to a chain that only drops or rejects by that verdict. The element keeps its own conditions.
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
    let unconditional = only.exact() && When { v6: None, ..only.when } == When::default();
    (unconditional && matches!(only.then, Then::Drop | Then::Reject)).then(|| (chain.name.clone(), only.then.clone()))
}

fn base(family: u8, attrs: &[u8]) -> Option<Base> {
    let hook = attribute(attrs, NFTA_CHAIN_HOOK)?;
    let (at, priority) = (number(hook, NFTA_HOOK_NUMBER)?, number(hook, NFTA_HOOK_PRIORITY).unwrap_or_default());
    let drops = number(attrs, NFTA_CHAIN_POLICY) == Some(NF_DROP);
    let packets = attribute(attrs, NFTA_CHAIN_COUNTERS).and_then(packets);
    let translates = attribute(attrs, NFTA_CHAIN_TYPE).is_some_and(|kind| text(kind) == "nat");
    Some(Base { hook: hook_name(family, at), priority, translates, drops, packets })
}

fn hook_name(family: u8, number: i32) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::super::super::nft::attr;
    use super::*;

    fn message(family: u8, generation: u16, attrs: &[(u16, &[u8])]) -> Vec<u8> {
        let [high, low] = generation.to_be_bytes();
        let attrs = attrs.iter().flat_map(|(number, value)| attr(*number, value));
        [family, 0, high, low].into_iter().chain(attrs).collect()
    }

    #[test]
    fn chains_of_a_dormant_table_are_not_at_a_hook() {
        let mut reader = Reader::default();
        for (family, flags) in [(1, 1_i32), (2, 2), (10, 1)] {
            reader.add_table(&message(
                family,
                0,
                &[(NFTA_TABLE_NAME, b"t\0"), (NFTA_TABLE_FLAGS, &flags.to_be_bytes())],
            ));
        }
        let hook = [attr(NFTA_HOOK_NUMBER, &[0, 0, 0, 1]), attr(NFTA_HOOK_PRIORITY, &[0; 4])].concat();
        let attrs = [(NFTA_CHAIN_TABLE, &b"t\0"[..]), (NFTA_CHAIN_NAME, &b"in\0"[..]), (NFTA_CHAIN_HOOK, &hook[..])];
        [1, 2].into_iter().for_each(|family| _ = reader.add_chain(&message(family, 0, &attrs)));
        let based = reader.tables.iter().flat_map(|it| it.chains.iter().map(|chain| (it.family, chain.base.is_some())));
        assert_eq!(based.collect::<Vec<_>>(), [("inet", false), ("ip", true)]);
    }

    #[test]
    fn answers_of_two_generations_are_no_reading() {
        let changed = |generations: &[u16]| {
            let mut generation = Generation::default();
            generations.iter().for_each(|number| generation.note(&message(1, *number, &[])));
            generation.changed
        };
        assert!(!changed(&[]) && !changed(&[4, 4, 4]) && changed(&[4, 4, 5, 4]));
    }

    #[test]
    fn a_dropping_element_has_no_local_endpoints_and_a_rejecting_one_has_none() {
        let comments = |name: &str, then: Then, comment: Option<&str>| {
            let element = Rule { then, comment: comment.map(str::to_owned), ..Rule::default() };
            let mut table = Table::for_tests(vec![]);
            table.maps.insert(name.to_owned(), vec![element]);
            table.name_elements();
            table.maps.remove(name).expect("the map").remove(0).comment
        };
        let comment = |text: &str| Some(text.to_owned());
        let reject = || Then::Goto("reject-chain".into());
        let cart = Some("shop/cart:http");
        for map in ["no-endpoint-services", "no-endpoint-nodeports"] {
            assert_eq!(comments(map, reject(), cart), comment("shop/cart:http has no endpoints"));
            assert_eq!(comments(map, Then::Drop, cart), comment("shop/cart:http has no local endpoints"));
        }
        assert_eq!(comments("no-endpoint-services", reject(), None), comment("a Service has no endpoints"));
        assert_eq!(comments("firewall-ips", Then::Drop, cart), comment("shop/cart:http"));
    }
}
