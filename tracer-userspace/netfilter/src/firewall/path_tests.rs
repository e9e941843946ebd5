//! Compares the rules that tracer names with those that a packet meets when each rule is evaluated.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::add_tables;
use super::super::ruleset::{Base, Chain, Element, Test};
use super::*;
use tracer_model::event::path::{FlagTest, Packet, state};
use tracer_model::event::{Firewall, Netns, Prefix, RuleVerdict, TcpFlags, Tracked, When};

/// A condition of a test's rule.
#[derive(Clone, Debug)]
enum Cond {
    /// The port is in one of these ranges, or in none.
    Ports(Vec<(u16, u16)>, bool),
    /// The address has this prefix, or does not.
    Dst([u8; 4], u8, bool),
    State(u8),
    /// The packet is a SYN, or is not.
    Syn(bool),
    /// A property of a packet that tracer does not know.
    Hidden(usize),
}

#[derive(Clone, Debug)]
enum Act {
    Drop,
    Reject,
    Accept,
    Return,
    Jump(usize),
    Goto(usize),
    /// A verdict map with port ranges that do not overlap.
    Map(Vec<((u16, u16), Act)>),
}

#[derive(Clone, Debug)]
struct Ruleset {
    /// Priority and policy of the base chains, which are the first chains.
    bases: Vec<(i32, bool)>,
    chains: Vec<Vec<(Vec<Cond>, Act)>>,
}

/// A packet with all properties that rules can compare.
#[derive(Clone, Debug)]
struct Real {
    dst: [u8; 4],
    dport: u16,
    state: u8,
    flags: u8,
    hidden: Vec<bool>,
}

const HIDDEN: usize = 3;
const CHAINS: usize = 6;

/// Makes numbers of random bytes.
struct Dice<'a>(std::slice::Iter<'a, u8>);

impl Dice<'_> {
    fn below(&mut self, end: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % end
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    fn ranges(&mut self) -> Vec<(u16, u16)> {
        let mut from = 0;
        (0..self.below(3) + 1)
            .map(|_| {
                let first = from + self.below(4) as u16;
                let last = first + self.below(3) as u16;
                from = last + 1;
                (first, last)
            })
            .collect()
    }

    fn cond(&mut self) -> Cond {
        match self.below(6) {
            0 | 1 => Cond::Ports(self.ranges(), self.coin()),
            2 => Cond::Dst([10, 0, 0, self.below(4) as u8], [8, 30, 31, 32][self.below(4)], self.coin()),
            3 => Cond::State([state::NEW, state::ESTABLISHED | state::RELATED, state::INVALID][self.below(3)]),
            4 => Cond::Syn(self.coin()),
            _ => Cond::Hidden(self.below(HIDDEN)),
        }
    }

    fn act(&mut self, chain: usize, in_map: bool) -> Act {
        let onward = (chain + 1 < CHAINS).then(|| chain + 1 + self.below(CHAINS - chain - 1));
        match (self.below(8), onward) {
            (0 | 1, _) => Act::Drop,
            (2, _) => Act::Reject,
            (3, _) => Act::Accept,
            (4, _) => Act::Return,
            (5, Some(to)) => Act::Jump(to),
            (6, Some(to)) => Act::Goto(to),
            (7, _) if !in_map => {
                let ranges = self.ranges();
                Act::Map(ranges.into_iter().map(|range| (range, self.act(chain, true))).collect())
            }
            _ => Act::Drop,
        }
    }

    fn ruleset(&mut self) -> Ruleset {
        let bases = (0..self.below(2) + 1).map(|_| ([-10, 0, 0, 10][self.below(4)], self.below(4) == 0)).collect();
        let rule = |dice: &mut Self, chain| ((0..dice.below(3)).map(|_| dice.cond()).collect(), dice.act(chain, false));
        let chains = (0..CHAINS).map(|chain| (0..self.below(4)).map(|_| rule(self, chain)).collect()).collect();
        Ruleset { bases, chains }
    }

    fn packet(&mut self) -> Real {
        let flags = [0x02, SYN_ACK, 0x10][self.below(3)];
        let states = [tracked(flags), &[state::INVALID, state::UNTRACKED]].concat();
        Real {
            dst: [10, 0, 0, self.below(4) as u8],
            dport: 1 + self.below(12) as u16,
            state: states[self.below(states.len())],
            flags,
            hidden: (0..HIDDEN).map(|_| self.coin()).collect(),
        }
    }
}

const SYN_ACK: u8 = 0x12;

/// The states of a packet that conntrack knows. A SYN-ACK begins no connection.
const fn tracked(flags: u8) -> &'static [u8] {
    if flags == SYN_ACK { &[state::ESTABLISHED] } else { &[state::NEW, state::ESTABLISHED, state::RELATED] }
}

impl Cond {
    /// Evaluates the condition directly.
    fn holds(&self, packet: &Real) -> bool {
        match self {
            Self::Ports(ranges, inverted) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&packet.dport)) != *inverted
            }
            Self::Dst(addr, len, inverted) => {
                let bits = |addr: [u8; 4]| u32::from_be_bytes(addr) >> (32 - u32::from(*len));
                (bits(*addr) == bits(packet.dst)) != *inverted
            }
            Self::State(states) => packet.state & states != 0,
            Self::Syn(is) => (packet.flags == 0x02) == *is,
            Self::Hidden(kind) => packet.hidden[*kind],
        }
    }

    /// Adds the condition to a rule, as the reader of a backend does.
    fn take(&self, rule: &mut Rule, sets: &mut HashMap<String, Elements>) {
        match self {
            Self::Ports(ranges, inverted) => match ranges[..] {
                [(first, last)] if first == last => {
                    if !rule.when.take(When { dport: Some(first), ..When::default() }, *inverted) {
                        rule.rest.push(Test::Unknown);
                    }
                }
                [(first, last)] => {
                    let [from, to] = [first, last].map(|port| port.to_be_bytes().to_vec());
                    rule.rest.push(Test::Range { key: Key::DestinationPort, from, to, inverted: *inverted });
                }
                _ => {
                    let set = format!("__set{}", sets.len());
                    sets.insert(set.clone(), elements(ranges));
                    rule.rest.push(Test::Set { keys: vec![Key::DestinationPort], set, inverted: *inverted });
                }
            },
            Self::Dst(addr, len, inverted) => {
                let dst = Some(Prefix { addr: (*addr).into(), len: *len });
                if !rule.when.take(When { dst, ..When::default() }, *inverted) {
                    rule.rest.push(Test::Unknown);
                }
            }
            Self::State(states) => rule.rest.push(Test::State(*states)),
            Self::Syn(is) => rule.take_flags(FlagTest { mask: 0x3f, value: 0x02, inverted: !is }),
            Self::Hidden(_) => rule.rest.push(Test::Unknown),
        }
    }
}

/// The elements of a set, as the kernel stores ranges.
fn elements(ranges: &[(u16, u16)]) -> Elements {
    let at = |port: u16, ends| Element { key: port.to_be_bytes().to_vec(), ends, ..Element::default() };
    Elements(ranges.iter().rev().flat_map(|(first, last)| [at(last + 1, true), at(*first, false)]).collect())
}

impl Ruleset {
    fn table(&self) -> Table {
        let name = |chain: usize| format!("c{chain}");
        let (mut sets, mut maps) = (HashMap::new(), HashMap::new());
        let then = |act: &Act| match act {
            Act::Drop => Then::Drop,
            Act::Reject => Then::Reject,
            Act::Accept => Then::Accept,
            Act::Return => Then::Return,
            Act::Jump(to) => Then::Jump(name(*to)),
            Act::Goto(to) => Then::Goto(name(*to)),
            Act::Map(_) => Then::Nothing,
        };
        let mut chains = Vec::new();
        for (at, rules) in self.chains.iter().enumerate() {
            let base = |&(priority, drops)| Base { hook: "INPUT", priority, drops, ..Base::default() };
            let mut made = Vec::new();
            for (number, (conds, act)) in rules.iter().enumerate() {
                let comment = Some(format!("{at} {number}"));
                let mut rule = Rule { then: then(act), comment, ..Rule::default() };
                conds.iter().for_each(|cond| cond.take(&mut rule, &mut sets));
                if let Act::Map(of) = act {
                    let map = format!("__map{}", sets.len());
                    let ranges: Vec<(u16, u16)> = of.iter().map(|(range, _)| *range).collect();
                    let mut verdicts: Vec<Rule> = Vec::new();
                    for (element, (_, act)) in of.iter().enumerate().rev() {
                        let comment = Some(format!("{at} {number} {element}"));
                        verdicts.push(Rule { rest: vec![Test::Unknown], ..Rule::default() });
                        verdicts.push(Rule { then: then(act), comment, rest: vec![Test::Unknown], ..Rule::default() });
                    }
                    sets.insert(map.clone(), elements(&ranges));
                    maps.insert(map.clone(), verdicts);
                    rule.then = Then::Map(map, vec![Key::DestinationPort]);
                }
                made.push(rule);
            }
            chains.push(Chain { name: name(at), base: self.bases.get(at).map(base), rules: made });
        }
        Table { maps, sets, ..Table::for_tests(chains) }
    }

    /// The comment of the rule that drops the packet; for a policy, the name of its chain.
    fn taker(&self, packet: &Real) -> Option<String> {
        let mut order: Vec<usize> = (0..self.bases.len()).collect();
        order.sort_by_key(|base| self.bases[*base].0);
        order.into_iter().find_map(|base| match self.run(base, packet) {
            End::Taken(rule) => Some(rule),
            End::Accepted => None,
            End::Behind => self.bases[base].1.then(|| format!("c{base}")),
        })
    }

    fn run(&self, chain: usize, packet: &Real) -> End {
        for (number, (conds, act)) in self.chains[chain].iter().enumerate() {
            if !conds.iter().all(|cond| cond.holds(packet)) {
                continue;
            }
            let has = |range: &(u16, u16)| (range.0..=range.1).contains(&packet.dport);
            let (act, name) = match act {
                Act::Map(of) => match of.iter().enumerate().find(|(_, (range, _))| has(range)) {
                    Some((element, (_, act))) => (act, format!("{chain} {number} {element}")),
                    None => continue,
                },
                act => (act, format!("{chain} {number}")),
            };
            match act {
                Act::Drop | Act::Reject => return End::Taken(name),
                Act::Accept => return End::Accepted,
                Act::Return => return End::Behind,
                Act::Goto(to) => return self.run(*to, packet),
                Act::Jump(to) => match self.run(*to, packet) {
                    End::Behind => {}
                    end => return end,
                },
                Act::Map(_) => {}
            }
        }
        End::Behind
    }
}

enum End {
    Taken(String),
    Accepted,
    /// The packet reaches the end of the chain.
    Behind,
}

/// The rules that tracer names for a packet, and whether tracer says that no such packet passes them.
fn named(ruleset: &Ruleset, packet: &Real) -> (BTreeSet<String>, bool) {
    let addr = |ip: [u8; 4], port: u16| (ip, port).into();
    let flow = Flow { src: addr([10, 9, 9, 9], 0), dst: addr(packet.dst, packet.dport) };
    let mut firewall = Firewall::empty(Netns(1));
    add_tables(&[ruleset.table()], flow, &mut firewall);
    let path = firewall.path.expect("a small ruleset");
    assert!(path.is_of(flow));
    let tracked = match packet.state {
        state::INVALID => Tracked::No,
        state::UNTRACKED => Tracked::Untracked,
        _ => Tracked::Yes,
    };
    let seen = Packet { hook: Some("INPUT"), tracked: Some(tracked), flags: TcpFlags(packet.flags) };
    let takers = path.takers(&seen, |_| false);
    let name = |rule: usize| {
        let rule = &firewall.rules[rule];
        rule.comment.clone().unwrap_or_else(|| rule.chain.clone())
    };
    (takers.rules.into_iter().map(name).collect(), takers.take_all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// tracer names the rule that drops the packet, and maybe others. Each named rule drops such a packet for some value of the
    /// unknown properties. If tracer says that no packet passes, none does.
    #[test]
    fn the_rule_that_takes_a_packet_is_found(bytes in prop::collection::vec(any::<u8>(), 40..400)) {
        let mut dice = Dice(bytes.iter());
        let packet = dice.packet();
        let ruleset = dice.ruleset();
        let (found, take_all) = named(&ruleset, &packet);
        let taker = ruleset.taker(&packet);
        if let Some(taker) = &taker {
            prop_assert!(found.contains(taker), "{taker} is not among {found:?}");
        }
        let one_state = matches!(packet.state, state::INVALID | state::UNTRACKED);
        prop_assert!(!(one_state && take_all) || taker.is_some(), "{found:?} should take all");
        let states: &[u8] = if one_state { &[packet.state] } else { tracked(packet.flags) };
        let hidden = (0..1 << HIDDEN).map(|bits: usize| (0..HIDDEN).map(|kind| bits >> kind & 1 == 1).collect::<Vec<_>>());
        let possible = hidden.flat_map(|hidden| states.iter().map(move |state| (hidden.clone(), *state)));
        let takers: BTreeSet<String> = possible
            .filter_map(|(hidden, state)| ruleset.taker(&Real { hidden, state, ..packet.clone() }))
            .collect();
        if ruleset.is_plain() {
            prop_assert_eq!(&found, &takers);
        }
        prop_assert!(takers.is_subset(&found), "{:?} but {:?}", found, takers);
    }
}

impl Ruleset {
    /// Whether tracer can evaluate all of it: no unknown properties, at most one condition on a field, and a known order of base
    /// chains.
    fn is_plain(&self) -> bool {
        let count = |conds: &[Cond], like: fn(&Cond) -> bool| conds.iter().filter(|cond| like(cond)).count();
        let plain = |(conds, _): &(Vec<Cond>, Act)| {
            count(conds, |cond| matches!(cond, Cond::Hidden(_))) == 0
                && count(conds, |cond| matches!(cond, Cond::Ports(..))) < 2
                && count(conds, |cond| matches!(cond, Cond::Dst(..))) < 2
        };
        let mut priorities = BTreeSet::new();
        self.chains.iter().flatten().all(plain) && self.bases.iter().all(|(priority, _)| priorities.insert(*priority))
    }
}

/// If [`When`] has no room for the second condition on a field, the result stays open.
#[test]
fn a_second_condition_on_one_field_is_kept_as_unknown() {
    let but = |port| Cond::Ports(vec![(port, port)], true);
    let ruleset = Ruleset { bases: vec![(0, false)], chains: vec![vec![(vec![but(3), but(4)], Act::Drop)]] };
    let packet = |dport| Real { dst: [10, 0, 0, 1], dport, state: state::NEW, flags: 0x02, hidden: vec![] };
    assert!(ruleset.taker(&packet(3)).is_none() && ruleset.taker(&packet(5)).is_some());
    assert!(!named(&ruleset, &packet(3)).1 && !named(&ruleset, &packet(4)).1);
}

/// The tables of a rule that looks into a map which was not read.
#[test]
fn a_map_that_was_not_read_leaves_the_path_unknown() {
    let rule = Rule { then: Then::Map("m".into(), vec![Key::DestinationPort]), ..Rule::default() };
    let base = Base { hook: "INPUT", drops: true, ..Base::default() };
    let table = Table::for_tests(vec![Chain { name: "in".into(), base: Some(base), rules: vec![rule] }]);
    let mut firewall = Firewall::empty(Netns(1));
    let flow = Flow { src: ([10, 0, 0, 9], 40_000).into(), dst: ([10, 0, 0, 1], 80).into() };
    add_tables(&[table], flow, &mut firewall);
    assert_eq!((firewall.path, firewall.rules.len()), (None, 1));
    assert_eq!(firewall.rules[0].verdict, RuleVerdict::Drop);
}
