//! The path of one flow's packets through the tables of a network namespace, in the kernel's order: see [`Path`].

use std::collections::HashMap;

use super::condition::Has;
use super::ruleset::{Elements, Key, Place, Rule, Table, Then};
use tracer_model::event::Flow;
use tracer_model::event::path::{Asks, BaseChain, Onward, Path, Step};

/// The limit of steps. Even on a large node, few rules can match one flow.
const MAX_STEPS: usize = 512;
/// The limit of compared rules and elements: any pod may have thousands of chains that jump to each other.
const MAX_COMPARED: usize = 1 << 20;
/// The limit of nested jumps: nftables allows 16 (`NFT_JUMP_STACK_SIZE`).
const MAX_DEPTH: usize = 32;

/// The rules that packets of this flow reach; absent: a limit was reached, or a rule needs a chain or map that was not read.
/// `places` has the number of each rule that can drop or reject. The flow's client may have any port.
pub(super) fn path(tables: &[Table], flow: Flow, places: &HashMap<Place, usize>) -> Option<Path> {
    let mut path = Path { flow, chains: Vec::new(), translates: false };
    let mut left = Left { steps: MAX_STEPS, compared: MAX_COMPARED };
    for (number, table) in tables.iter().enumerate().filter(|(_, table)| table.sees(flow)) {
        let chains = table.index();
        for (at, chain) in table.chains.iter().enumerate() {
            let Some(base) = &chain.base else { continue };
            path.translates |= base.translates;
            let mut walk =
                PathWalk { table, number, chains: &chains, places, flow, steps: Vec::new(), left: &mut left };
            walk.base(at)?;
            let steps = walk.steps;
            if steps.iter().any(|step| matches!(step.then, Onward::Take(_))) {
                left.steps = left.steps.checked_sub(steps.len())?;
                path.chains.push(BaseChain { hook: base.hook.to_owned(), priority: base.priority, steps });
            }
        }
    }
    Some(path)
}

impl Table {
    fn sees(&self, flow: Flow) -> bool {
        match self.family {
            "ip" => !flow.dst.is_ipv6(),
            "ip6" => flow.dst.is_ipv6(),
            _ => true,
        }
    }
}

struct Left {
    steps: usize,
    compared: usize,
}

struct PathWalk<'a> {
    table: &'a Table,
    number: usize,
    chains: &'a HashMap<&'a str, usize>,
    places: &'a HashMap<Place, usize>,
    flow: Flow,
    steps: Vec<Step>,
    left: &'a mut Left,
}

/// The numbers of the steps without a known target yet.
#[derive(Default)]
struct Open {
    /// They continue after their chain.
    chain: Vec<usize>,
    /// They continue after the base chain.
    base: Vec<usize>,
}

impl PathWalk<'_> {
    fn base(&mut self, at: usize) -> Option<()> {
        let base = self.table.chains[at].base.as_ref()?;
        let mut open = Open::default();
        if base.translates {
            // Only the first packet of a connection reaches a chain that translates.
            self.push(Asks { unknown: true, ..Asks::default() }, Onward::SkipIf(0))?;
            open.base.push(0);
        }
        self.chain(at, 0, &mut open)?;
        if base.drops {
            self.take(Asks::default(), Place { table: self.number, chain: at, rule: None, element: None })?;
        }
        self.close(&open.base);
        Some(())
    }

    /// Adds the rules of a chain. Steps that return from it continue after them.
    fn chain(&mut self, at: usize, depth: usize, open: &mut Open) -> Option<()> {
        (depth <= MAX_DEPTH).then_some(())?;
        let before = std::mem::take(&mut open.chain);
        for (number, rule) in self.table.chains[at].rules.iter().enumerate() {
            self.compare(1)?;
            let Some(asks) = rule.asks(self.flow, self.table) else { continue };
            let place = Place { table: self.number, chain: at, rule: Some(number), element: None };
            match &rule.then {
                Then::Map(name, keys) => self.map(place, (asks, name, keys), depth, open)?,
                then => self.rule(asks, then, place, depth, open)?,
            }
        }
        let returns = std::mem::replace(&mut open.chain, before);
        self.close(&returns);
        Some(())
    }

    /// Adds the elements of a verdict map that the packet may match. `asks` are the rule's other conditions.
    fn map(
        &mut self,
        place: Place,
        (asks, name, keys): (Asks, &str, &[Key]),
        depth: usize,
        open: &mut Open,
    ) -> Option<()> {
        let elements: &Elements = self.table.sets.get(name)?;
        let rules: &[Rule] = self.table.maps.get(name)?;
        self.compare(elements.0.len())?;
        let found = match elements.has(keys, self.flow) {
            Has::One(at) => vec![(Asks::default(), at)],
            Has::Some(some) => some,
        };
        let guard = self.skip_unless(asks)?;
        for (asks, element) in found {
            let then = &rules.get(element)?.then;
            self.rule(asks, then, Place { element: Some(element), ..place }, depth, open)?;
        }
        self.close(&guard);
        Some(())
    }

    fn rule(&mut self, asks: Asks, then: &Then, place: Place, depth: usize, open: &mut Open) -> Option<()> {
        match then {
            Then::Drop | Then::Reject => self.take(asks, place)?,
            Then::Proxy(_) => {
                self.take(Asks { unknown: true, ..asks.clone() }, place)?;
                self.leave(asks, &mut open.base)?;
            }
            Then::Accept => self.leave(asks, &mut open.base)?,
            Then::Return => self.leave(asks, &mut open.chain)?,
            Then::Jump(name) | Then::Goto(name) => {
                let target = *self.chains.get(name.as_str())?;
                let guard = self.skip_unless(asks)?;
                self.chain(target, depth + 1, open)?;
                if matches!(then, Then::Goto(_)) {
                    self.leave(Asks::default(), &mut open.chain)?;
                }
                self.close(&guard);
            }
            Then::Map(..) | Then::Nothing => {}
        }
        Some(())
    }

    /// Adds a step that a packet without `asks` skips from. [`close`](Self::close) sets where such a packet continues.
    fn skip_unless(&mut self, asks: Asks) -> Option<Vec<usize>> {
        if asks == Asks::default() {
            return Some(Vec::new());
        }
        let at = self.push(asks, Onward::SkipUnless(0))?;
        Some(vec![at])
    }

    fn take(&mut self, asks: Asks, place: Place) -> Option<()> {
        self.push(asks, Onward::Take(*self.places.get(&place)?)).map(drop)
    }

    fn leave(&mut self, asks: Asks, open: &mut Vec<usize>) -> Option<()> {
        open.push(self.push(asks, Onward::SkipIf(0))?);
        Some(())
    }

    fn push(&mut self, asks: Asks, then: Onward) -> Option<usize> {
        (self.steps.len() < self.left.steps).then_some(())?;
        self.steps.push(Step { asks, then });
        Some(self.steps.len() - 1)
    }

    /// Sets the target of these steps to the end of the present steps.
    fn close(&mut self, steps: &[usize]) {
        let end = self.steps.len();
        for at in steps {
            if let Onward::SkipIf(to) | Onward::SkipUnless(to) = &mut self.steps[*at].then {
                *to = end;
            }
        }
    }

    fn compare(&mut self, count: usize) -> Option<()> {
        self.left.compared = self.left.compared.checked_sub(count)?;
        Some(())
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
