//! Parses elements of sets and verdict maps of nf_tables, and limits the memory for what is read.

use libc::NFT_SET_ELEM_INTERVAL_END;

use super::super::nft::{
    NFGENMSG, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_LIST_ELEM, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_USERDATA, comment, number, user_value,
};
use super::expression::verdict;
use super::ruleset::{Element, Elements, Key, Rule, Test, Then};
use tracer_model::event::When;
use tracer_node::netlink::{attribute, attributes, field};

const NFTA_SET_ELEM_FLAGS: u16 = 3;
const NFTA_SET_ELEM_KEY_END: u16 = 10;
const NFT_SET_ELEM_CATCHALL: i32 = 2;

/// The memory limit for the chains, rules and map elements of one reading. A node with 10,000 Services needs about 40 MiB by
/// calculation, and any pod may hold more in its own namespace.
const MAX_BYTES: usize = 48 << 20;

/// The memory that is left.
pub(super) struct Room {
    pub(super) bytes: usize,
    /// Whether something did not fit. From then on nothing more is kept.
    pub(super) full: bool,
}

impl Default for Room {
    fn default() -> Self {
        Self { bytes: MAX_BYTES, full: false }
    }
}

impl Room {
    pub(super) const fn take(&mut self, bytes: usize) -> bool {
        self.full |= bytes > self.bytes;
        if !self.full {
            self.bytes -= bytes;
        }
        !self.full
    }
}

impl Rule {
    /// Memory of this rule, including its names.
    pub(super) fn bytes(&self) -> usize {
        let name = match &self.then {
            Then::Jump(name) | Then::Goto(name) => name.len(),
            Then::Map(name, keys) => name.len() + size_of_val(keys.as_slice()),
            _ => 0,
        };
        let rest: usize = self.rest.iter().map(|test| size_of::<Test>() + test.bytes()).sum();
        size_of::<Self>() + name + rest + self.comment.as_ref().map_or(0, String::len)
    }
}

/// Adds the keys of elements while memory is left.
pub(super) fn add_keys(message: &[u8], elements: &mut Elements, room: &mut Room) {
    for element in elements_of(message).map(key_of) {
        if !room.take(element.bytes()) {
            return;
        }
        elements.0.push(element);
    }
}

fn elements_of(message: &[u8]) -> impl Iterator<Item = &[u8]> {
    let list = message.get(NFGENMSG..).and_then(|rest| attribute(rest, NFTA_SET_ELEM_LIST_ELEMENTS));
    list.into_iter().flat_map(attributes).filter(|(number, _)| *number == NFTA_LIST_ELEM).map(|(_, element)| element)
}

fn key_of(element: &[u8]) -> Element {
    let value = |attr| attribute(element, attr).and_then(|it| attribute(it, NFTA_DATA_VALUE)).map(<[u8]>::to_vec);
    let flags = number(element, NFTA_SET_ELEM_FLAGS).unwrap_or_default();
    let key = value(NFTA_SET_ELEM_KEY).unwrap_or_default();
    let is_open = attribute(element, NFTA_SET_ELEM_USERDATA).is_some_and(is_open);
    Element {
        last: value(NFTA_SET_ELEM_KEY_END).or_else(|| is_open.then(|| vec![u8::MAX; key.len()])),
        key,
        ends: flags & NFT_SET_ELEM_INTERVAL_END != 0,
        catches_all: flags & NFT_SET_ELEM_CATCHALL != 0,
    }
}

/// nft marks a range that reaches to the highest value, because no element ends it (`SET_ELEM_F_INTERVAL_OPEN`).
fn is_open(userdata: &[u8]) -> bool {
    const FLAGS: u8 = 1;
    user_value(userdata, FLAGS).and_then(|it| field(it, 0)).map(u32::from_ne_bytes).is_some_and(|flags| flags & 1 != 0)
}

/// The elements of one verdict map.
pub(super) struct Map<'a> {
    keys: &'a [Key],
    elements: Vec<Rule>,
    entries: Vec<Element>,
    room: &'a mut Room,
}

impl<'a> Map<'a> {
    pub(super) const fn new(keys: &'a [Key], room: &'a mut Room) -> Self {
        Self { keys, elements: Vec::new(), entries: Vec::new(), room }
    }

    pub(super) fn add(&mut self, message: &[u8]) {
        for element in elements_of(message) {
            if !self.room.full {
                self.keep(element);
            }
        }
    }

    /// Keeps also the elements that end a range. They have no verdict.
    fn keep(&mut self, element: &[u8]) {
        let (rule, entry) = (self.element(element), key_of(element));
        if self.room.take(rule.bytes() + entry.bytes()) {
            self.elements.push(rule);
            self.entries.push(entry);
        }
    }

    fn element(&self, element: &[u8]) -> Rule {
        let data = attribute(element, NFTA_SET_ELEM_DATA).and_then(|data| attribute(data, NFTA_DATA_VERDICT));
        let then = data.and_then(verdict).unwrap_or_default();
        let key = attribute(element, NFTA_SET_ELEM_KEY).and_then(|key| attribute(key, 1));
        let when = key.and_then(|key| Key::conditions(self.keys, key));
        let comment = attribute(element, NFTA_SET_ELEM_USERDATA).and_then(comment);
        let rest = if when.is_some() { Vec::new() } else { vec![Test::Unknown] };
        Rule { when: when.unwrap_or_default(), rest, then, comment, ..Rule::default() }
    }

    pub(super) fn finish(mut self) -> (Elements, Vec<Rule>) {
        let entries = Elements(self.entries);
        // Keys are ends of ranges instead of values.
        let are_ranges = entries.may_hold_all() || entries.0.iter().any(|it| it.ends || it.last.is_some());
        for element in self.elements.iter_mut().filter(|_| are_ranges) {
            (element.when, element.rest) = (When::default(), vec![Test::Unknown]);
        }
        (entries, self.elements)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::nft::attr;
    use super::super::condition::Has;
    use super::*;
    use tracer_model::event::Flow;

    /// The kernel's answer for a map that drops this many ports.
    fn dropped_ports(count: u16) -> Vec<u8> {
        const NFTA_VERDICT_CODE: u16 = 1;
        let element = |port: u16| {
            let key = attr(NFTA_SET_ELEM_KEY, &attr(1, &port.to_be_bytes()));
            let data = attr(NFTA_SET_ELEM_DATA, &attr(NFTA_DATA_VERDICT, &attr(NFTA_VERDICT_CODE, &[0; 4])));
            attr(NFTA_LIST_ELEM, &[key, data].concat())
        };
        let elements: Vec<u8> = (0..count).flat_map(element).collect();
        [vec![0; NFGENMSG], attr(NFTA_SET_ELEM_LIST_ELEMENTS, &elements)].concat()
    }

    /// All maps share one limit: a pod with a hundred maps gets no hundred times the memory.
    #[test]
    fn elements_are_kept_until_the_memory_is_used_up() {
        let one = size_of::<Rule>() + size_of::<Element>() + size_of::<u16>();
        let mut room = Room { bytes: 15 * one, full: false };
        let mut kept = || {
            let mut map = Map::new(&[Key::DestinationPort], &mut room);
            map.add(&dropped_ports(10));
            let (_, elements) = map.finish();
            assert!(elements.iter().all(|element| element.then == Then::Drop && element.exact()), "{elements:?}");
            elements.len()
        };
        assert_eq!([kept(), kept(), kept()], [10, 5, 0]);
        assert!(room.full);
    }

    /// `{ 0.0.0.0/0 }`, `{ 0-65535 }`, as the kernel stores them: one element, which nft marks as open.
    #[test]
    fn a_range_from_the_lowest_to_the_highest_value_holds_all() {
        let has = |key: &[u8], userdata: &[u8], count: usize| {
            let element = [attr(NFTA_SET_ELEM_KEY, &attr(1, key)), attr(NFTA_SET_ELEM_USERDATA, userdata)].concat();
            let list = attr(NFTA_LIST_ELEM, &element).repeat(count);
            let message = [vec![0; NFGENMSG], attr(NFTA_SET_ELEM_LIST_ELEMENTS, &list)].concat();
            let mut room = Room::default();
            let mut map = Map::new(&[Key::DestinationPort], &mut room);
            map.add(&message);
            let (entries, rules) = map.finish();
            let flow = Flow { src: ([10, 0, 0, 1], 0).into(), dst: ([10, 0, 0, 2], 80).into() };
            let may_match = match entries.has(&[Key::DestinationPort], flow) {
                Has::One(_) => Some(true),
                Has::Some(some) => (!some.is_empty()).then_some(false),
            };
            (may_match, rules[0].exact())
        };
        const OPEN: &[u8] = &[1, 4, 1, 0, 0, 0];
        assert_eq!(has(&[0, 0], OPEN, 1), (Some(true), false));
        assert_eq!(has(&[0, 0], &[], 1), (Some(false), false), "either all or only 0");
        assert_eq!(has(&[0, 0], &[], 2), (None, true));
        assert_eq!(has(&[0, 80], &[], 1), (Some(true), true));
    }

    #[test]
    fn long_names_count_as_memory() {
        let jump = Rule { then: Then::Jump("c".repeat(200)), comment: Some("s".repeat(100)), ..Rule::default() };
        assert_eq!(jump.bytes(), Rule::default().bytes() + 300);
        let mut room = Room { bytes: 10, full: false };
        assert!(room.take(10) && !room.take(1) && !room.take(0));
    }
}
