//! Tables of the legacy ip_tables, for IPv4 and IPv6.

use std::collections::HashMap;
use std::ops::Range;

use super::super::NetfilterError;
use super::super::legacy::{LAYOUTS, Layout, chain_name, entries, split_entry, tables_in_use, target};
use super::Tables;
use super::expression::prefix;
use super::ruleset::{Base, Chain, Rule, Table, Test, Then};
use super::xtables::{self, add_match};
use tracer_model::event::{Backend, When};
use tracer_node::netlink::{field, text};

pub(super) const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `struct ipt_getinfo`: valid hooks, hook entries, underflows.
const VALID_HOOKS: usize = 32;
const HOOK_ENTRIES: usize = 36;
const UNDERFLOWS: usize = 56;
/// Verdicts are written as `-NF_* - 1`; `XT_RETURN` is `-NF_REPEAT - 1`.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const QUEUE: i32 = -4;
const RETURN: i32 = -5;
/// `IPT_INV_*` and `IP6T_INV_*`, linux/netfilter_ipv4/ip_tables.h: the same bits in both.
const INV_SRCIP: u8 = 0x08;
const INV_DSTIP: u8 = 0x10;
const INV_PROTO: u8 = 0x40;

/// Reads the tables of the network namespace of the calling thread.
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

/// Reads the rules of these chains of `nat` only.
pub(crate) fn read_nat_chains(names: [&str; 2]) -> Result<Vec<Table>, NetfilterError> {
    let mut tables = Vec::new();
    for layout in LAYOUTS.iter().filter(|layout| tables_in_use(layout).iter().any(|name| name == "nat")) {
        let (info, table) = entries(layout, "nat")?;
        tables.push(parse_chains(layout, "nat", &info, &table, |chain| names.contains(&chain)));
    }
    Ok(tables)
}

/// Where the chains and policies are in the bytes of a table. The reader needs them before it reads the rules.
struct Places<'a> {
    layout: &'a Layout,
    /// Names of the chains, by the offset of their first entry.
    chains: HashMap<usize, String>,
    /// Numbers of the hooks, by the offset of the entry with the hook's policy.
    policies: HashMap<usize, usize>,
}

pub(crate) fn parse(layout: &Layout, table_name: &str, info: &[u8], bytes: &[u8]) -> Table {
    parse_chains(layout, table_name, info, bytes, |_| true)
}

/// Parses all chains, with the rules only of those for which `wanted` is true.
fn parse_chains(layout: &Layout, table_name: &str, info: &[u8], bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Table {
    let places = Places::find(layout, info, bytes);
    let mut chains: Vec<Chain> = Vec::new();
    for (at, entry) in each_entry(bytes, layout) {
        if let Some(name) = places.chains.get(&at.start) {
            chains.push(places.chain(table_name, name, info));
        }
        let Some(chain) = chains.last_mut() else { continue };
        if wanted(&chain.name) && chain_name(entry, layout).is_none() {
            places.add(chain, at.start, entry);
        }
    }
    for chain in &mut chains {
        chain.rules.retain(|rule| rule.then != Then::Nothing);
    }
    Table::new(Backend::IptablesLegacy, layout.table_family, table_name.to_owned(), chains)
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

    fn chain(&self, table: &str, name: &str, info: &[u8]) -> Chain {
        let (priority, translates) = (priority(table, name), table == "nat");
        let hook = HOOKS.iter().position(|hook| *hook == name).filter(|hook| word(info, VALID_HOOKS) & 1 << hook != 0);
        let base = hook.map(|hook| Base { hook: HOOKS[hook], priority, translates, ..Base::default() });
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
        let mut rule = Rule { handle: number, packets, ..Rule::default() };
        self.add_addresses(&mut rule, entry);
        add_matches(&mut rule, entry, self.layout);
        rule.then = self.then(entry);
        chain.rules.push(rule);
    }

    fn then(&self, entry: &[u8]) -> Then {
        match verdict_of(entry, self.layout) {
            Some(DROP) => Then::Drop,
            Some(ACCEPT | QUEUE) => Then::Accept,
            Some(RETURN) => Then::Return,
            Some(offset) => match usize::try_from(offset).ok().and_then(|offset| self.chains.get(&offset)) {
                Some(chain) if entry.get(self.layout.flags).is_some_and(|flags| flags & self.layout.goto != 0) => {
                    Then::Goto(chain.clone())
                }
                Some(chain) => Then::Jump(chain.clone()),
                None => Then::Nothing,
            },
            None => {
                let target = target(entry, self.layout);
                target.and_then(|(name, info)| xtables::target(name.as_bytes(), info)).unwrap_or_default()
            }
        }
    }

    /// Adds the conditions of the entry itself: addresses, devices and the protocol, each with a bit that inverts it.
    fn add_addresses(&self, rule: &mut Rule, entry: &[u8]) {
        let layout = self.layout;
        let [flags, mut inverted] = field(entry, layout.flags).unwrap_or_default();
        let devices = entry.get(4 * layout.addr..layout.protocol).unwrap_or_default();
        rule.when.v6 = Some(layout.addr == 16);
        let mut understood = flags & layout.unmodelled == 0 && devices.iter().all(|byte| *byte == 0);
        for (bit, condition) in conditions(entry, layout) {
            understood &= condition.is_some_and(|one| rule.when.take(one, inverted & bit != 0));
            inverted &= !bit;
        }
        if !understood || inverted != 0 {
            rule.rest.push(Test::Unknown);
        }
    }
}

/// The conditions of an entry, each with the bit that inverts it; `None` for one that tracer does not model.
fn conditions(entry: &[u8], layout: &Layout) -> impl Iterator<Item = (u8, Option<When>)> {
    let addr = |at: usize| entry.get(at * layout.addr..(at + 1) * layout.addr).unwrap_or_default();
    let is_asked = |at: usize| addr(at + 2).iter().any(|byte| *byte != 0);
    let prefix = |at: usize| prefix(addr(at), Some(addr(at + 2)));
    let src = || prefix(0).map(|it| When { src: Some(it), ..When::default() });
    let dst = || prefix(1).map(|it| When { dst: Some(it), ..When::default() });
    let number = field(entry, layout.protocol).map(u16::from_ne_bytes).filter(|it| *it != 0);
    let protocol = |it| Some(When { protocol: Some(u8::try_from(it).ok()?), ..When::default() });
    let asked = [
        is_asked(0).then(|| (INV_SRCIP, src())),
        is_asked(1).then(|| (INV_DSTIP, dst())),
        number.map(|it| (INV_PROTO, protocol(it))),
    ];
    asked.into_iter().flatten()
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
        add_match(rule, name.as_bytes(), info);
        matches = matches.get(size..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::{FirewallRule, Flow, Netns, Prefix};
    use tracer_testing::address;

    const INPUT: usize = 1;

    /// An entry as iptables writes it, its standard target last.
    struct Entry {
        layout: &'static Layout,
        bytes: Vec<u8>,
        verdict: i32,
    }

    fn entry(layout: &'static Layout, verdict: i32) -> Entry {
        Entry { layout, bytes: vec![0; layout.size], verdict }
    }

    impl Entry {
        fn set(mut self, at: usize, value: &[u8]) -> Self {
            self.bytes[at..at + value.len()].copy_from_slice(value);
            self
        }

        fn inverted(self, bits: u8) -> Self {
            let at = self.layout.flags + 1;
            self.set(at, &[bits])
        }

        /// Source (0) or destination (1).
        fn address(self, which: usize, value: &[u8], mask: &[u8]) -> Self {
            let size = self.layout.addr;
            self.set(which * size, value).set((which + 2) * size, mask)
        }

        fn protocol(self, number: u16) -> Self {
            let at = self.layout.protocol;
            self.set(at, &number.to_ne_bytes())
        }

        fn port(mut self, dport: u16) -> Self {
            let mut info = [0, 0, 0xff, 0xff].to_vec();
            info.extend(dport.to_ne_bytes().repeat(2));
            info.resize(16, 0);
            self.bytes.extend((32 + info.len() as u16).to_ne_bytes());
            self.bytes.extend(named(b"tcp"));
            self.bytes.extend(info);
            self
        }

        fn finish(mut self) -> Vec<u8> {
            let at = self.bytes.len();
            self.bytes.extend(40_u16.to_ne_bytes());
            self.bytes.extend(named(b""));
            self.bytes.extend(self.verdict.to_ne_bytes());
            self.bytes.resize(at + 40, 0);
            let sizes = [(at as u16).to_ne_bytes(), (at as u16 + 40).to_ne_bytes()].concat();
            let offset = self.layout.target_offset;
            self.set(offset, &sizes).bytes
        }
    }

    /// A name of 29 bytes, and the revision.
    fn named(name: &[u8]) -> Vec<u8> {
        let mut bytes = name.to_vec();
        bytes.resize(30, 0);
        bytes
    }

    /// The rules that drop in a table that has only the base chain INPUT, with these rules and an accepting policy.
    fn input(layout: &'static Layout, rules: Vec<Entry>) -> Vec<FirewallRule> {
        let mut bytes: Vec<u8> = rules.into_iter().flat_map(Entry::finish).collect();
        let policy = bytes.len() as u32;
        bytes.extend(entry(layout, ACCEPT).finish());
        let mut info = vec![0; 84];
        info[VALID_HOOKS..][..4].copy_from_slice(&(1_u32 << INPUT).to_ne_bytes());
        info[UNDERFLOWS + 4 * INPUT..][..4].copy_from_slice(&policy.to_ne_bytes());
        let mut firewall = tracer_model::event::Firewall::empty(Netns(1));
        let table = parse(layout, "filter", &info, &bytes);
        super::super::add_tables(&[table], flow("10.88.0.1:40000", "10.88.0.2:8080"), &mut firewall);
        firewall.rules
    }

    fn flow(src: &str, dst: &str) -> Flow {
        Flow { src: address(src), dst: address(dst) }
    }

    fn v4() -> Entry {
        entry(&LAYOUTS[0], DROP)
    }

    fn only(rule: Entry) -> FirewallRule {
        let [rule] = <[FirewallRule; 1]>::try_from(input(rule.layout, vec![rule])).expect("one rule");
        rule
    }

    fn prefix(addr: &str, len: u8) -> Option<Prefix> {
        Some(Prefix { addr: address(addr), len })
    }

    #[test]
    fn a_plain_rule_is_exact() {
        let rule = only(v4().address(1, &[10, 88, 0, 2], &[255; 4]).protocol(6).port(8080));
        assert_eq!((rule.when.dst, rule.when.dport, rule.exact), (prefix("10.88.0.2", 32), Some(8080), true));
        assert!(rule.hooks == ["INPUT"] && rule.may_match(flow("10.88.0.1:40000", "10.88.0.2:8080")));
    }

    /// The addresses of kubelet's rule in KUBE-FIREWALL: `! -s 127.0.0.0/8 -d 127.0.0.0/8`.
    #[test]
    fn an_inverted_source_does_not_change_the_destination() {
        let (addr, mask) = ([127, 0, 0, 0], [255, 0, 0, 0]);
        let rule = only(v4().address(0, &addr, &mask).address(1, &addr, &mask).inverted(INV_SRCIP));
        assert_eq!((rule.when.src, rule.when.not.src), (None, prefix("127.0.0.0", 8)));
        assert_eq!((rule.when.dst, rule.when.v6, rule.exact), (prefix("127.0.0.0", 8), Some(false), true));
        assert!(!rule.may_match(flow("10.88.0.1:40000", "10.88.0.2:8080")));
        assert!(!rule.may_match(flow("127.0.0.1:40000", "127.0.0.1:8080")));
        assert!(rule.may_match(flow("10.88.0.1:40000", "127.0.0.1:8080")));
    }

    #[test]
    fn each_bit_inverts_its_own_field() {
        let full =
            || v4().address(0, &[10, 0, 0, 0], &[255, 0, 0, 0]).address(1, &[192, 0, 2, 1], &[255; 4]).protocol(17);
        let when = |bit| only(full().inverted(bit)).when;
        let (src, dst) = (prefix("10.0.0.0", 8), prefix("192.0.2.1", 32));
        let plain = |when: When| (when.src, when.dst, when.protocol);
        let not = |when: When| (when.not.src, when.not.dst, when.not.protocol);
        assert_eq!((plain(when(INV_SRCIP)), not(when(INV_SRCIP))), ((None, dst, Some(17)), (src, None, None)));
        assert_eq!((plain(when(INV_DSTIP)), not(when(INV_DSTIP))), ((src, None, Some(17)), (None, dst, None)));
        assert_eq!((plain(when(INV_PROTO)), not(when(INV_PROTO))), ((src, dst, None), (None, None, Some(17))));
    }

    /// What Docker 28 writes into `raw`: `-d 172.17.0.2 ! -i docker0`.
    #[test]
    fn devices_fragments_and_inversions_without_a_condition_are_not_exact() {
        let container = || v4().address(1, &[172, 17, 0, 2], &[255; 4]);
        for rule in [
            container().set(16, b"docker0\0").set(48, &[0xff; 8]).inverted(0x01),
            container().set(16, b"docker0\0").set(48, &[0xff; 8]),
            container().set(LAYOUTS[0].flags, &[LAYOUTS[0].unmodelled]),
            container().inverted(INV_SRCIP),
            container().inverted(0x20),
        ] {
            let rule = only(rule);
            assert_eq!((rule.when.dst, rule.exact), (prefix("172.17.0.2", 32), false), "{rule:?}");
        }
        assert!(only(container().set(LAYOUTS[0].flags, &[LAYOUTS[0].goto])).exact);
    }

    #[test]
    fn entries_of_ip6_tables_are_parsed_alike() {
        let mut own = [0; 16];
        own[0] = 0xfd;
        let mask = [[0xff; 8], [0; 8]].concat();
        let v6 = || entry(&LAYOUTS[1], DROP).address(0, &own, &mask).protocol(6).port(8080);
        let rule = only(v6().inverted(INV_SRCIP));
        assert_eq!((rule.when.not.src, rule.when.src, rule.when.dport), (prefix("fd00::", 64), None, Some(8080)));
        assert!(rule.exact && rule.when.v6 == Some(true));
        assert_eq!(only(v6()).when.src, prefix("fd00::", 64));
        assert!(!only(v6().set(LAYOUTS[1].flags, &[0x03])).exact, "a traffic class is asked for");
        assert!(only(v6().set(LAYOUTS[1].flags, &[0x01])).exact, "the protocol is");
    }

    /// `-j QUEUE`, before a rule that drops the rest.
    #[test]
    fn a_queued_packet_leaves_the_base_chain() {
        let first = |before| input(&LAYOUTS[0], vec![entry(&LAYOUTS[0], before), v4().protocol(6)])[0].first;
        assert!(!first(QUEUE) && !first(ACCEPT));
        assert!(input(&LAYOUTS[0], vec![v4().protocol(6)])[0].first);
    }

    /// `! -s 10.88.0.1 -j RETURN`: the conditions of the rule after it alone do not show which packets it drops.
    #[test]
    fn a_rule_after_an_inverted_return_is_not_exact() {
        let leave = entry(&LAYOUTS[0], RETURN).address(0, &[10, 88, 0, 1], &[255; 4]).inverted(INV_SRCIP);
        let rules = input(&LAYOUTS[0], vec![leave, v4().protocol(6).port(8080)]);
        assert_eq!(rules.iter().map(|rule| (rule.handle, rule.exact)).collect::<Vec<_>>(), [(Some(2), false)]);
    }
}
