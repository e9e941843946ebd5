//! Finds the rules that can drop or reject a flow: follows the chains from their hooks.

use std::cell::Cell;
use std::collections::HashMap;

use super::path::path;
use super::ruleset::{Chain, Place, Rule, Table, Then};
use tracer_model::event::{Firewall, FirewallRule, Flow, Limit, RuleVerdict, When};

/// The limit of rules in an answer. If there are more, only those that can match the queried flow are kept.
const MAX_RULES: usize = 1024;
/// The limit of nested jumps: nftables allows 16 (`NFT_JUMP_STACK_SIZE`).
const MAX_DEPTH: u32 = 64;
/// The limit of rules and elements that one reading visits: ten times what a node with 10,000 Services needs. A chain or map is
/// visited again for each rule that leads to it, and any pod may have thousands of both.
const MAX_STEPS: usize = 4_000_000;

/// How a chain is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    hooks: u16,
    when: When,
    exact: bool,
    base: Option<usize>,
    limit: Option<Limit>,
}

const HOOKS: [&str; 8] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "INGRESS", "EGRESS", "BRIDGE"];

fn bit(hook: &str) -> u16 {
    HOOKS.iter().position(|name| *name == hook).map_or(0, |at| 1 << at)
}

/// How many more rules this reading may visit; `None`: it wanted to visit more.
#[derive(Debug)]
pub(super) struct Steps(Cell<Option<usize>>);

impl Steps {
    pub(super) const fn new() -> Self {
        Self(Cell::new(Some(MAX_STEPS)))
    }

    fn take(&self) -> bool {
        self.0.set(self.0.get().and_then(|left| left.checked_sub(1)));
        !self.ran_out()
    }

    const fn ran_out(&self) -> bool {
        self.0.get().is_none()
    }
}

#[derive(Debug)]
pub(super) struct Rules {
    flow: Flow,
    found: Vec<(Place, FirewallRule)>,
    narrowed: bool,
    truncated: bool,
    /// How many tables were walked.
    tables: usize,
}

impl Rules {
    pub(super) fn new(flow: Flow) -> Self {
        Self { flow, found: Vec::new(), narrowed: false, truncated: false, tables: 0 }
    }

    /// Adds a rule with these conditions, unless it cannot match.
    fn add(&mut self, place: Place, when: When, rule: impl FnOnce() -> FirewallRule) {
        if !self.narrowed && self.found.len() >= MAX_RULES {
            self.narrowed = true;
            self.found.retain(|(_, rule)| rule.may_match(self.flow));
        }
        if self.narrowed && !when.allows(self.flow) {
            return;
        }
        if self.found.len() >= MAX_RULES {
            self.truncated = true;
        } else {
            let rule = Some(rule()).filter(|rule| !self.narrowed || rule.may_match(self.flow));
            self.found.extend(rule.map(|rule| (place, rule)));
        }
    }

    /// Writes the rules that were found in these tables to `firewall`.
    pub(super) fn write_to(self, tables: &[Table], firewall: &mut Firewall) {
        let places = self.found.iter().enumerate().map(|(at, (place, _))| (*place, at)).collect();
        firewall.path = path(tables, self.flow, &places);
        firewall.rules = self.found.into_iter().map(|(_, rule)| rule).collect();
        firewall.truncated |= self.truncated;
        firewall.only_for = self.narrowed.then_some(self.flow);
    }
}

impl Table {
    /// Adds every rule and policy that drops or rejects, in the order in which a hook comes to them.
    pub(super) fn flatten(&self, steps: &Steps, into: &mut Rules) {
        let number = into.tables;
        into.tables += 1;
        let index = self.index();
        let reach = self.reach(steps, &index);
        if steps.ran_out() {
            // The conditions come only from the jumps visited so far: other jumps may have fewer conditions.
            into.truncated = true;
            return;
        }
        let walk = ChainWalk { table: self, number, steps, reach, index };
        let mut bases: Vec<usize> = (0..self.chains.len()).filter(|at| self.chains[*at].base.is_some()).collect();
        bases.sort_by_key(|at| self.chains[*at].base.as_ref().map(|base| base.priority));
        let mut walked = Walked { visited: vec![false; self.chains.len()], accepted_before: false, limits: Vec::new() };
        for base in bases {
            walked.accepted_before = false;
            walked.limits.clear();
            walk.visit(base, 0, &mut walked, into);
            walk.policy(base, &walked, into);
        }
        into.truncated |= steps.ran_out();
    }

    pub(super) fn index(&self) -> HashMap<&str, usize> {
        self.chains.iter().enumerate().map(|(at, chain)| (chain.name.as_str(), at)).collect()
    }

    /// The hooks and conditions of each chain. Each step can only remove conditions, so the loop ends.
    fn reach(&self, steps: &Steps, index: &HashMap<&str, usize>) -> Vec<Option<Reach>> {
        let jumps = self.count_jumps(steps, index);
        let mut reach: Vec<Option<Reach>> =
            self.chains.iter().enumerate().map(|(at, chain)| start(at, chain)).collect();
        let mut waiting: Vec<usize> = (0..reach.len()).filter(|at| reach[*at].is_some()).collect();
        while let Some(at) = waiting.pop() {
            let Some(from) = reach[at] else { continue };
            self.each_edge(at, steps, &mut |rule, when, exact, target| {
                let Some(&target) = index.get(target) else { return };
                let (when, whole) = from.when.and(when);
                let exact = from.exact && exact && whole && jumps[target] == 1;
                let edge = Reach { when, exact, limit: rule.limit().or(from.limit), ..from };
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
    fn count_jumps(&self, steps: &Steps, index: &HashMap<&str, usize>) -> Vec<u32> {
        let mut jumps = vec![0; self.chains.len()];
        for at in 0..self.chains.len() {
            self.each_edge(at, steps, &mut |_, _, _, target| {
                if let Some(&target) = index.get(target) {
                    jumps[target] += 1;
                }
            });
        }
        jumps
    }

    fn each_edge(&self, chain: usize, steps: &Steps, each: &mut impl FnMut(&Rule, When, bool, &str)) {
        self.each_step(chain, steps, &mut |_, rule, when, exact| {
            if let Then::Jump(target) | Then::Goto(target) = &rule.then {
                each(rule, when, exact, target);
            }
        });
    }

    /// Visits the rules of a chain, and instead of a verdict map its elements, until the steps run out. `exact`: each packet that
    /// meets the conditions reaches the rule.
    fn each_step(&self, chain: usize, steps: &Steps, each: &mut impl FnMut(Within, &Rule, When, bool)) {
        let mut left = false;
        for (at, rule) in self.chains[chain].rules.iter().enumerate().take_while(|_| steps.take()) {
            if let Then::Map(name, _) = &rule.then {
                let elements = self.maps.get(name).into_iter().flatten().enumerate();
                for (number, element) in elements.take_while(|_| steps.take()) {
                    let (when, whole) = rule.when.and(element.when);
                    each((at, Some(number)), element, when, rule.exact() && element.exact() && whole && !left);
                }
                left = true;
            } else {
                each((at, None), rule, rule.when, rule.exact() && !left);
                left |= matches!(rule.then, Then::Return | Then::Goto(_));
            }
        }
    }
}

/// A rule of a chain, and the element of its map.
type Within = (usize, Option<usize>);

fn start(at: usize, chain: &Chain) -> Option<Reach> {
    let base = chain.base.as_ref()?;
    Some(Reach { hooks: bit(base.hook), when: When::default(), exact: true, base: Some(at), limit: None })
}

fn merge(left: Reach, right: Reach) -> Reach {
    Reach {
        hooks: left.hooks | right.hooks,
        when: left.when.common(right.when),
        exact: left.exact && right.exact,
        base: left.base.filter(|base| right.base == Some(*base)),
        limit: left.limit.filter(|limit| right.limit == Some(*limit)),
    }
}

struct ChainWalk<'a> {
    table: &'a Table,
    number: usize,
    steps: &'a Steps,
    index: HashMap<&'a str, usize>,
    reach: Vec<Option<Reach>>,
}

struct Walked {
    visited: Vec<bool>,
    /// Whether an earlier rule of this base chain may have accepted the packet.
    accepted_before: bool,
    /// The limits of the rules that let the packet pass before, each with the chain that it leaves: none for the base chain.
    limits: Vec<(Option<usize>, Limit)>,
}

impl Walked {
    fn limit(&self) -> Option<Limit> {
        self.limits.last().map(|(_, limit)| *limit)
    }
}

impl ChainWalk<'_> {
    fn visit(&self, chain: usize, depth: u32, walked: &mut Walked, into: &mut Rules) {
        if self.reach[chain].is_none() {
            return;
        }
        if depth > MAX_DEPTH || std::mem::replace(&mut walked.visited[chain], true) {
            walked.accepted_before = true;
            return;
        }
        let place = |(rule, element)| Place { table: self.number, chain, rule: Some(rule), element };
        self.table.each_step(chain, self.steps, &mut |at, rule, when, exact| match &rule.then {
            Then::Drop => self.add(place(at), RuleVerdict::Drop, (rule, when, exact), walked, into),
            Then::Reject => self.add(place(at), RuleVerdict::Reject, (rule, when, exact), walked, into),
            Then::Jump(target) | Then::Goto(target) => {
                if let Some(&target) = self.index.get(target.as_str()) {
                    let before = walked.limits.len();
                    self.visit(target, depth + 1, walked, into);
                    if !rule.takes_first_of(into.flow, self.table) {
                        walked.limits.truncate(before);
                    }
                }
            }
            Then::Proxy(_) => {
                self.add(place(at), RuleVerdict::Drop, (rule, when, false), walked, into);
                walked.accepted_before = true;
            }
            Then::Accept => {
                walked.accepted_before = true;
                walked.limits.extend(rule.limit_of(into.flow, self.table).map(|limit| (None, limit)));
            }
            Then::Return => walked.limits.extend(rule.limit_of(into.flow, self.table).map(|it| (Some(chain), it))),
            Then::Nothing | Then::Map(..) => {}
        });
        walked.limits.retain(|(of, _)| *of != Some(chain));
    }

    fn add(&self, place: Place, verdict: RuleVerdict, own: (&Rule, When, bool), walked: &Walked, into: &mut Rules) {
        let (Some(reach), (rule, when, exact)) = (self.reach[place.chain], own) else { return };
        let (when, whole) = reach.when.and(when);
        into.add(place, when, || FirewallRule {
            handle: rule.handle,
            comment: rule.comment.clone(),
            when,
            exact: reach.exact && exact && whole,
            first: !walked.accepted_before,
            limit: rule.limit().or(reach.limit).or_else(|| walked.limit()),
            packets: rule.packets,
            proxy_port: if let Then::Proxy(port) = rule.then { Some(port) } else { None },
            ..self.blank(place.chain, reach, verdict)
        });
    }

    fn policy(&self, chain: usize, walked: &Walked, into: &mut Rules) {
        let (Some(base), Some(reach)) = (&self.table.chains[chain].base, self.reach[chain]) else { return };
        if base.drops {
            let blank = || self.blank(chain, reach, RuleVerdict::Drop);
            let place = Place { table: self.number, chain, rule: None, element: None };
            into.add(place, reach.when, || FirewallRule {
                policy: true,
                packets: base.packets,
                limit: walked.limit(),
                ..blank()
            });
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
            limit: None,
            packets: None,
            proxy_port: None,
        }
    }
}

#[cfg(test)]
mod tests;
