//! Tables, chains and rules of either backend, and the walk from the hooks to the rules that drop.
//!
//! Only what matters is kept: rules that drop, reject, jump, or leave their chain.

use std::cell::Cell;
use std::collections::HashMap;

use crate::event::{Backend, Firewall, FirewallRule, Flow, RuleVerdict, When, any_client};

/// Rules handed over at most; above it only those that can match the flow that was asked about.
const MAX_RULES: usize = 1024;
/// Deeper chains are not followed: nftables allows 16 (`NFT_JUMP_STACK_SIZE`).
const MAX_DEPTH: u32 = 64;
/// Rules and elements looked at in one reading: ten times what a node with 10,000 Services takes. Chains that many ways lead
/// to, and maps that many rules use, are walked again for each: anyone's pod may have thousands of both.
const MAX_STEPS: usize = 4_000_000;

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    pub backend: Backend,
    pub family: &'static str,
    pub name: String,
    pub chains: Vec<Chain>,
    /// Elements of verdict maps.
    pub maps: HashMap<String, Vec<Rule>>,
}

/// A chain.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub name: String,
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// Where a base chain hangs.
#[derive(Debug)]
pub(super) struct Base {
    pub hook: &'static str,
    pub priority: i32,
    /// Its policy drops.
    pub drops: bool,
    /// Packets that the policy dropped, where it counts.
    pub packets: Option<u64>,
}

/// A rule, or an element of a verdict map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub handle: Option<u64>,
    pub when: When,
    /// `when` is all it asks for.
    pub exact: bool,
    pub then: Then,
    pub comment: Option<String>,
    pub packets: Option<u64>,
}

/// What becomes of a packet that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Then {
    /// It goes on to the next rule.
    #[default]
    Nothing,
    /// It leaves the base chain for good.
    Accept,
    Drop,
    Reject,
    Jump(String),
    Goto(String),
    /// It leaves the chain.
    Return,
    /// What the verdict map of this name says.
    Map(String),
}

/// How a chain is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    hooks: u16,
    when: When,
    exact: bool,
    base: Option<usize>,
}

const HOOKS: [&str; 8] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "INGRESS", "EGRESS", "BRIDGE"];

fn bit(hook: &str) -> u16 {
    HOOKS.iter().position(|name| *name == hook).map_or(0, |at| 1 << at)
}

/// How many more rules are looked at in this reading.
#[derive(Debug)]
pub(super) struct Steps {
    left: Cell<usize>,
    ran_out: Cell<bool>,
}

impl Steps {
    pub(super) const fn new() -> Self {
        Self { left: Cell::new(MAX_STEPS), ran_out: Cell::new(false) }
    }

    fn take(&self) -> bool {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.unwrap_or(0));
        self.ran_out.set(left.is_none());
        left.is_some()
    }
}

/// The rules found so far.
#[derive(Debug)]
pub(super) struct Rules {
    flow: Flow,
    found: Vec<FirewallRule>,
    narrowed: bool,
    truncated: bool,
}

impl Rules {
    pub(super) fn new(flow: Flow) -> Self {
        Self { flow: any_client(flow), found: Vec::new(), narrowed: false, truncated: false }
    }

    /// Adds a rule with these conditions; one that cannot match is not made.
    fn add(&mut self, when: When, rule: impl FnOnce() -> FirewallRule) {
        if !self.narrowed && self.found.len() >= MAX_RULES {
            self.narrowed = true;
            self.found.retain(|rule| rule.may_match(self.flow));
        }
        if self.narrowed && !when.allows(self.flow) {
            return;
        }
        if self.found.len() >= MAX_RULES {
            self.truncated = true;
        } else {
            self.found.extend(Some(rule()).filter(|rule| !self.narrowed || rule.may_match(self.flow)));
        }
    }

    pub(super) fn hand_over(self, firewall: &mut Firewall) {
        firewall.rules = self.found;
        firewall.truncated |= self.truncated;
        firewall.only_for = self.narrowed.then_some(self.flow);
    }
}

impl Table {
    /// Adds every rule and policy that drops or rejects, in the order in which a hook comes to them.
    pub(super) fn flatten(&self, steps: &Steps, into: &mut Rules) {
        let index = self.chains.iter().enumerate().map(|(at, chain)| (chain.name.as_str(), at)).collect();
        let reach = self.reach(steps, &index);
        if steps.ran_out.get() {
            // What is known of the ways so far is more than what is true of all.
            into.truncated = true;
            return;
        }
        let walk = Walk { table: self, steps, reach, index };
        let mut bases: Vec<usize> = (0..self.chains.len()).filter(|at| self.chains[*at].base.is_some()).collect();
        bases.sort_by_key(|at| self.chains[*at].base.as_ref().map(|base| base.priority));
        let mut walked = Walked { visited: vec![false; self.chains.len()], let_go: false };
        for base in bases {
            walked.let_go = false;
            walk.visit(base, 0, &mut walked, into);
            walk.policy(base, into);
        }
        into.truncated |= steps.ran_out.get();
    }

    /// Hooks and conditions of each chain. Only ever loses precision, so it comes to an end.
    fn reach(&self, steps: &Steps, index: &HashMap<&str, usize>) -> Vec<Option<Reach>> {
        let ways = self.ways(steps, index);
        let mut reach: Vec<Option<Reach>> =
            self.chains.iter().enumerate().map(|(at, chain)| start(at, chain)).collect();
        let mut waiting: Vec<usize> = (0..reach.len()).filter(|at| reach[*at].is_some()).collect();
        while let Some(at) = waiting.pop() {
            let Some(from) = reach[at] else { continue };
            self.each_edge(at, steps, &mut |when, exact, target| {
                let Some(&target) = index.get(target) else { return };
                let (when, whole) = from.when.and(when);
                let edge = Reach { when, exact: from.exact && exact && whole && ways[target] == 1, ..from };
                let merged = reach[target].map_or(edge, |known| merge(known, edge));
                if reach[target] != Some(merged) {
                    reach[target] = Some(merged);
                    waiting.push(target);
                }
            });
        }
        reach
    }

    /// How many rules lead to each chain.
    fn ways(&self, steps: &Steps, index: &HashMap<&str, usize>) -> Vec<u32> {
        let mut ways = vec![0; self.chains.len()];
        for at in 0..self.chains.len() {
            self.each_edge(at, steps, &mut |_, _, target| {
                if let Some(&target) = index.get(target) {
                    ways[target] += 1;
                }
            });
        }
        ways
    }

    fn each_edge(&self, chain: usize, steps: &Steps, each: &mut impl FnMut(When, bool, &str)) {
        self.each_step(chain, steps, &mut |rule, when, exact| {
            if let Then::Jump(target) | Then::Goto(target) = &rule.then {
                each(when, exact, target);
            }
        });
    }

    /// The rules of a chain, verdict maps opened, with whether each is met by whatever meets its conditions; as far as the steps
    /// last.
    fn each_step(&self, chain: usize, steps: &Steps, each: &mut impl FnMut(&Rule, When, bool)) {
        let mut left = false;
        for rule in self.chains[chain].rules.iter().take_while(|_| steps.take()) {
            if let Then::Map(name) = &rule.then {
                for element in self.maps.get(name).into_iter().flatten().take_while(|_| steps.take()) {
                    let (when, whole) = rule.when.and(element.when);
                    each(element, when, rule.exact && element.exact && whole && !left);
                }
                left = true;
            } else {
                each(rule, rule.when, rule.exact && !left);
                left |= matches!(rule.then, Then::Return | Then::Goto(_));
            }
        }
    }
}

fn start(at: usize, chain: &Chain) -> Option<Reach> {
    let base = chain.base.as_ref()?;
    Some(Reach { hooks: bit(base.hook), when: When::default(), exact: true, base: Some(at) })
}

fn merge(left: Reach, right: Reach) -> Reach {
    Reach {
        hooks: left.hooks | right.hooks,
        when: left.when.common(right.when),
        exact: left.exact && right.exact,
        base: left.base.filter(|base| right.base == Some(*base)),
    }
}

struct Walk<'a> {
    table: &'a Table,
    steps: &'a Steps,
    index: HashMap<&'a str, usize>,
    reach: Vec<Option<Reach>>,
}

/// How far a walk is.
struct Walked {
    visited: Vec<bool>,
    /// A rule of this base chain may have let the packet go.
    let_go: bool,
}

impl Walk<'_> {
    fn visit(&self, chain: usize, depth: u32, walked: &mut Walked, into: &mut Rules) {
        if self.reach[chain].is_none() {
            return;
        }
        if depth > MAX_DEPTH || std::mem::replace(&mut walked.visited[chain], true) {
            walked.let_go = true;
            return;
        }
        self.table.each_step(chain, self.steps, &mut |rule, when, exact| match &rule.then {
            Then::Drop => self.add(chain, RuleVerdict::Drop, (rule, when, exact), walked, into),
            Then::Reject => self.add(chain, RuleVerdict::Reject, (rule, when, exact), walked, into),
            Then::Jump(target) | Then::Goto(target) => {
                if let Some(&target) = self.index.get(target.as_str()) {
                    self.visit(target, depth + 1, walked, into);
                }
            }
            Then::Accept => walked.let_go = true,
            Then::Nothing | Then::Return | Then::Map(_) => {}
        });
    }

    fn add(&self, chain: usize, verdict: RuleVerdict, own: (&Rule, When, bool), walked: &Walked, into: &mut Rules) {
        let (Some(reach), (rule, when, exact)) = (self.reach[chain], own) else { return };
        let (when, whole) = reach.when.and(when);
        into.add(when, || FirewallRule {
            handle: rule.handle,
            comment: rule.comment.clone(),
            when,
            exact: reach.exact && exact && whole,
            first: !walked.let_go,
            packets: rule.packets,
            ..self.blank(chain, reach, verdict)
        });
    }

    fn policy(&self, chain: usize, into: &mut Rules) {
        let (Some(base), Some(reach)) = (&self.table.chains[chain].base, self.reach[chain]) else { return };
        if base.drops {
            let blank = || self.blank(chain, reach, RuleVerdict::Drop);
            into.add(reach.when, || FirewallRule { policy: true, packets: base.packets, ..blank() });
        }
    }

    fn blank(&self, chain: usize, reach: Reach, verdict: RuleVerdict) -> FirewallRule {
        let hooks = HOOKS.iter().filter(|hook| reach.hooks & bit(hook) != 0);
        FirewallRule {
            backend: self.table.backend,
            family: self.table.family.to_owned(),
            table: self.table.name.clone(),
            chain: self.table.chains[chain].name.clone(),
            base: reach.base.map(|base| self.table.chains[base].name.clone()),
            hooks: hooks.map(ToString::to_string).collect(),
            verdict,
            policy: false,
            handle: None,
            comment: None,
            when: reach.when,
            exact: false,
            first: false,
            priority: reach.base.and_then(|base| self.table.chains[base].base.as_ref()).map(|base| base.priority),
            packets: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Netns;

    fn flow() -> Flow {
        let addr = |text: &str| text.parse().expect("address");
        Flow { src: addr("10.88.0.1:40000"), dst: addr("10.88.0.2:8080") }
    }

    fn base(name: &str, hook: &'static str, rules: Vec<Rule>) -> Chain {
        Chain { name: name.into(), base: Some(Base { hook, priority: 0, drops: false, packets: None }), rules }
    }

    fn chain(name: &str, rules: Vec<Rule>) -> Chain {
        Chain { name: name.into(), base: None, rules }
    }

    fn rule(dport: Option<u16>, then: Then) -> Rule {
        Rule { when: When { dport, ..When::default() }, exact: true, then, ..Rule::default() }
    }

    fn table(chains: Vec<Chain>) -> Table {
        Table { backend: Backend::Nftables, family: "inet", name: "t".into(), chains, maps: HashMap::new() }
    }

    fn flat(table: &Table) -> Firewall {
        let mut rules = Rules::new(flow());
        table.flatten(&Steps::new(), &mut rules);
        let mut firewall = Firewall::empty(Netns(1));
        rules.hand_over(&mut firewall);
        firewall
    }

    #[test]
    fn a_chain_knows_its_hooks_and_the_conditions_on_the_way() {
        let jump = |dport| rule(dport, Then::Jump("deny".into()));
        let once =
            flat(&table(vec![base("in", "INPUT", vec![jump(Some(1))]), chain("deny", vec![rule(None, Then::Drop)])]));
        let deny = &once.rules[0];
        assert_eq!((deny.hooks.join(","), deny.when.dport, deny.exact), ("INPUT".into(), Some(1), true));
        assert_eq!(deny.base.as_deref(), Some("in"));
        let twice = flat(&table(vec![
            base("in", "INPUT", vec![jump(Some(1))]),
            base("fwd", "FORWARD", vec![jump(Some(2))]),
            chain("deny", vec![rule(None, Then::Drop)]),
        ]));
        let deny = &twice.rules[0];
        assert_eq!((deny.hooks.join(","), deny.when.dport, deny.exact), ("INPUT,FORWARD".into(), None, false));
        assert_eq!(deny.base, None);
    }

    #[test]
    fn conditions_that_do_not_fit_into_one_are_not_exact() {
        let but = |dport| {
            let mut rule = rule(None, Then::Drop);
            assert!(rule.when.take(When { dport: Some(dport), ..When::default() }, true));
            rule
        };
        let exact = |own: Rule, onward: Rule| {
            let onward = Rule { then: Then::Jump("deny".into()), ..onward };
            flat(&table(vec![base("in", "INPUT", vec![onward]), chain("deny", vec![own])])).rules[0].exact
        };
        assert!(exact(but(22), rule(None, Then::Drop)) && exact(but(22), but(22)));
        assert!(!exact(but(22), but(23)), "22 is let through as well");
    }

    #[test]
    fn what_follows_a_return_is_not_met_by_all_that_meets_it() {
        let rules = vec![rule(None, Then::Drop), rule(Some(1), Then::Return), rule(None, Then::Drop)];
        let exact: Vec<bool> =
            flat(&table(vec![base("in", "INPUT", rules)])).rules.iter().map(|rule| rule.exact).collect();
        assert_eq!(exact, [true, false]);
    }

    /// `nfqueue` in raw PREROUTING, behind it a rule that drops the rest: what was queued comes to the next base chain.
    #[test]
    fn what_follows_a_packet_that_was_let_go_is_not_first() {
        let first = |before: Then| {
            let rules = vec![rule(Some(1), before), rule(None, Then::Drop)];
            flat(&table(vec![base("in", "INPUT", rules)])).rules[0].first
        };
        assert!(!first(Then::Accept) && first(Then::Nothing));
    }

    #[test]
    fn an_unreached_chain_drops_nothing_and_a_loop_ends() {
        let nobody = table(vec![chain("alone", vec![rule(None, Then::Drop)])]);
        assert!(flat(&nobody).rules.is_empty());
        let jump = |to: &str| rule(None, Then::Jump(to.into()));
        let loops =
            table(vec![base("in", "INPUT", vec![jump("a")]), chain("a", vec![jump("b")]), chain("b", vec![jump("a")])]);
        assert!(flat(&loops).rules.is_empty());
    }

    #[test]
    fn elements_of_a_verdict_map_are_rules() {
        let mut table = table(vec![base("in", "INPUT", vec![rule(None, Then::Map("m".into()))])]);
        let elements = vec![rule(Some(1), Then::Goto("r".into())), rule(Some(8080), Then::Drop)];
        table.maps.insert("m".into(), elements);
        let rules = flat(&table).rules;
        assert_eq!(rules.iter().map(|rule| rule.when.dport).collect::<Vec<_>>(), [Some(8080)]);
    }

    #[test]
    fn of_fifty_thousand_rules_those_are_kept_that_can_match() {
        let mut rules: Vec<Rule> = (0..50_000_u32).map(|n| rule(Some((n % 8000) as u16), Then::Drop)).collect();
        rules.push(rule(Some(8080), Then::Drop));
        let firewall = flat(&table(vec![base("in", "INPUT", rules)]));
        assert_eq!((firewall.rules.len(), firewall.truncated), (1, false));
        assert!(firewall.is_complete_for(flow()) && !firewall.is_complete_for(flow().reversed()));
    }

    /// kube-proxy's nftables mode (pkg/proxy/nftables): Services lead to chains by maps, and one that has no endpoints is in a map
    /// of its own.
    #[test]
    fn ten_thousand_services_are_walked_whole() {
        const SERVICES: u16 = 10_000;
        let map = |name: &str| rule(None, Then::Map(name.into()));
        let jump = |to: &str| rule(None, Then::Jump(to.into()));
        let service = |n: u16| rule(Some(n), Then::Goto(format!("service-{n}")));
        let ends = |n: u16| (0..5).map(move |end| (format!("endpoint-{n}-{end}"), format!("__map-{n}")));
        let mut chains = vec![
            base("filter-input", "INPUT", vec![jump("service-endpoints-check")]),
            base("filter-output", "OUTPUT", vec![jump("service-endpoints-check")]),
            base("nat-prerouting", "PREROUTING", vec![jump("services")]),
            base("nat-output", "OUTPUT", vec![jump("services")]),
            chain("service-endpoints-check", vec![map("no-endpoint-services")]),
            chain("services", vec![map("service-ips"), map("service-nodeports")]),
        ];
        let mut maps = HashMap::from([
            ("service-ips".to_owned(), (0..SERVICES).map(service).collect()),
            ("service-nodeports".to_owned(), (0..SERVICES).map(service).collect()),
            ("no-endpoint-services".to_owned(), vec![rule(Some(8080), Then::Reject)]),
        ]);
        for n in 0..SERVICES {
            chains.push(chain(&format!("service-{n}"), vec![jump("mark"), map(&format!("__map-{n}"))]));
            let translates = || vec![jump("mark"), rule(None, Then::Accept)];
            chains.extend(ends(n).map(|(end, _)| chain(&end, translates())));
            maps.extend(
                ends(n).take(1).map(|(_, name)| (name, ends(n).map(|(end, _)| rule(None, Then::Goto(end))).collect())),
            );
        }
        let (steps, mut rules) = (Steps::new(), Rules::new(flow()));
        Table { maps, ..table(chains) }.flatten(&steps, &mut rules);
        let mut firewall = Firewall::empty(Netns(1));
        rules.hand_over(&mut firewall);
        let ports: Vec<_> = firewall.rules.iter().map(|rule| (rule.when.dport, rule.verdict)).collect();
        assert_eq!((ports, firewall.truncated), (vec![(Some(8080), RuleVerdict::Reject)], false));
        assert!(MAX_STEPS - steps.left.get() < MAX_STEPS / 4, "{} steps are left", steps.left.get());
    }

    /// A pod that has a thousand rules look into a map of a hundred thousand elements.
    #[test]
    fn maps_that_many_rules_use_are_not_walked_for_ever() {
        let elements = |then: &Then| (0..100_000_u32).map(|n| rule(Some((n % 8000) as u16), then.clone())).collect();
        for then in [Then::Drop, Then::Jump("deny".into())] {
            let looks = vec![rule(None, Then::Map("m".into())); 1000];
            let chains = vec![base("in", "INPUT", looks), chain("deny", vec![rule(None, Then::Drop)])];
            let maps = HashMap::from([("m".to_owned(), elements(&then))]);
            let firewall = flat(&Table { maps, ..table(chains) });
            assert!(firewall.truncated && firewall.rules.is_empty(), "{then:?}");
        }
    }

    /// Conditions of a chain are those of the ways that were found so far: too many to be true of the packet.
    #[test]
    fn rules_found_before_the_steps_end_are_sound() {
        let drops = |count| vec![rule(None, Then::Drop); count];
        let steps = Steps { left: Cell::new(100), ran_out: Cell::new(false) };
        let mut rules = Rules::new(flow());
        table(vec![base("in", "INPUT", drops(40))]).flatten(&steps, &mut rules);
        assert_eq!((rules.found.len(), rules.truncated), (20, true), "of 40 for each of three walks");
        table(vec![base("in", "INPUT", drops(1))]).flatten(&steps, &mut rules);
        assert_eq!(rules.found.len(), 20, "the ways of the next table are not known");
    }
}
