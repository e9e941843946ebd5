//! Evaluates the conditions of a rule for the packets of one flow, also those that
//! [`When`](tracer_model::event::When) cannot express.

use std::net::{IpAddr, SocketAddr};

use super::ruleset::{Element, Elements, Key, Rule, Table, Test};
use tracer_model::event::path::{Asks, state};
use tracer_model::event::{Flow, Limit, TcpFlags, When};

const SYN: TcpFlags = TcpFlags(0x02);

impl Key {
    /// The bytes of this field in the packets of a flow; absent: they do not follow from the flow.
    fn bytes_in(self, flow: Flow) -> Option<Vec<u8>> {
        let port = |at: SocketAddr| (at.port() != 0).then(|| at.port().to_be_bytes().to_vec());
        match self {
            Self::Family => Some(vec![if flow.dst.is_ipv6() { 10 } else { 2 }]),
            Self::Protocol => Some(vec![6]),
            Self::SourcePort => port(flow.src),
            Self::DestinationPort => port(flow.dst),
            Self::SourceAddress(size) => octets(flow.src.ip(), size),
            Self::DestinationAddress(size) => octets(flow.dst.ip(), size),
            Self::ConntrackState | Self::TcpFlags | Self::ReversePath | Self::Share | Self::Other => None,
        }
    }
}

/// The first `size` bytes of the address; absent if an address of its family has another size.
fn octets(addr: IpAddr, size: usize) -> Option<Vec<u8>> {
    match addr {
        IpAddr::V4(addr) if size <= 4 => addr.octets().get(..size).map(<[u8]>::to_vec),
        IpAddr::V6(addr) if size > 4 => addr.octets().get(..size).map(<[u8]>::to_vec),
        _ => None,
    }
}

impl Rule {
    /// Whether `when` has all conditions of the rule.
    pub(super) const fn exact(&self) -> bool {
        self.rest.is_empty()
    }

    /// The limit that decides which packets it takes.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.rest.iter().find_map(|test| match test {
            Test::Limit(limit) => Some(*limit),
            _ => None,
        })
    }

    /// The same if the first packet of this flow meets all other conditions.
    pub(super) fn limit_of(&self, flow: Flow, table: &Table) -> Option<Limit> {
        self.limit().filter(|_| self.takes_first_of(flow, table))
    }

    /// Whether the SYN of this flow surely meets all conditions but a limit.
    pub(super) fn takes_first_of(&self, flow: Flow, table: &Table) -> bool {
        let is_known = !self.rest.iter().any(|test| matches!(test, Test::Unknown));
        let met = |asks: Asks| asks.met_by(state::NEW, SYN) != Some(false);
        is_known && self.asks(flow, table).is_some_and(met)
    }

    /// The conditions that remain for a packet of this flow; absent: no packet of it can match.
    pub(super) fn asks(&self, flow: Flow, table: &Table) -> Option<Asks> {
        let mut asks = of_when(self.when, flow)?;
        for test in &self.rest {
            match test {
                Test::State(states) => asks.states &= states,
                Test::Flags(test) => asks.flags.push(*test),
                Test::Range { key, from, to, inverted } => match key.bytes_in(flow) {
                    Some(value) => (in_range(&value, from, to) != *inverted).then_some(())?,
                    None => asks.unknown = true,
                },
                Test::Set { keys, set, inverted } => match table.sets.get(set) {
                    Some(elements) => add_set_condition(&mut asks, elements.has(keys, flow), *inverted)?,
                    None => asks.unknown = true,
                },
                Test::Limit(_) | Test::Unknown => asks.unknown = true,
            }
        }
        (asks.states != 0).then_some(asks)
    }
}

fn in_range(value: &[u8], from: &[u8], to: &[u8]) -> bool {
    from <= value && value <= to
}

fn of_when(when: When, flow: Flow) -> Option<Asks> {
    when.allows(flow).then_some(())?;
    let depends = |port: Option<u16>, at: SocketAddr| port.is_some() && at.port() == 0;
    let unknown = [when.sport, when.not.sport].into_iter().any(|port| depends(port, flow.src))
        || [when.dport, when.not.dport].into_iter().any(|port| depends(port, flow.dst));
    let mut states = state::ANY;
    if when.invalid {
        states &= state::INVALID;
    }
    if when.new {
        states &= state::NEW;
    }
    (states != 0).then(|| Asks { states, unknown, ..Asks::default() })
}

/// Adds the condition that the packet is in a set, or (`inverted`) is not; absent: no packet can match.
fn add_set_condition(asks: &mut Asks, has: Has, inverted: bool) -> Option<()> {
    let only_states = |it: &Asks| it.flags.is_empty() && !it.unknown;
    match has {
        Has::One(_) => (!inverted).then_some(())?,
        Has::Some(all) if all.is_empty() => inverted.then_some(())?,
        Has::Some(all) if all.iter().all(|(asks, _)| only_states(asks)) => {
            let states = all.iter().fold(0, |states, (asks, _)| states | asks.states);
            asks.states &= if inverted { !states } else { states };
        }
        Has::Some(_) => asks.unknown = true,
    }
    Some(())
}

/// The elements of a set that a packet matches.
#[derive(Debug)]
pub(super) enum Has {
    /// This element, by its index.
    One(usize),
    /// One of these elements or none, each with the conditions that remain.
    Some(Vec<(Asks, usize)>),
}

impl Elements {
    /// The elements that a packet of this flow may match.
    pub(super) fn has(&self, keys: &[Key], flow: Flow) -> Has {
        if self.0.iter().any(|element| element.ends) {
            return self.of_ranges(keys, flow);
        }
        if self.may_hold_all() {
            return Has::Some(vec![(Asks { unknown: true, ..Asks::default() }, 0)]);
        }
        let mut some = Vec::new();
        for (at, element) in self.0.iter().enumerate().filter(|(_, element)| !element.catches_all) {
            match element.asks(keys, flow) {
                Some(asks) if asks == Asks::default() => return Has::One(at),
                Some(asks) => some.push((asks, at)),
                None => {}
            }
        }
        self.or_catch_all(some)
    }

    /// The kernel gives the range from the lowest to the highest value no end. Not every program marks it as open.
    pub(super) fn may_hold_all(&self) -> bool {
        let is_zero = |it: &Element| !it.key.is_empty() && it.key.iter().all(|byte| *byte == 0);
        matches!(self.0.as_slice(), [only] if only.last.is_none() && !only.ends && is_zero(only))
    }

    /// Adds the catch-all element: it matches if no other element does.
    fn or_catch_all(&self, mut some: Vec<(Asks, usize)>) -> Has {
        match self.0.iter().position(|element| element.catches_all) {
            Some(at) if some.is_empty() => Has::One(at),
            Some(at) => {
                some.push((Asks { unknown: true, ..Asks::default() }, at));
                Has::Some(some)
            }
            None => Has::Some(some),
        }
    }

    /// Looks up as `nft_rbtree_lookup` does: the greatest key that is not above the packet's value. Of two equal keys, the one
    /// that begins a range comes first.
    fn of_ranges(&self, keys: &[Key], flow: Flow) -> Has {
        let value = match keys {
            [key] => key.bytes_in(flow),
            _ => None,
        };
        let Some(value) = value else {
            let asks = || Asks { unknown: true, ..Asks::default() };
            let begins = self.0.iter().enumerate().filter(|(_, it)| !it.ends);
            return Has::Some(begins.map(|(at, _)| (asks(), at)).collect());
        };
        let below =
            self.0.iter().enumerate().filter(|(_, it)| !it.catches_all && it.key.as_slice() <= value.as_slice());
        match below.max_by_key(|(_, it)| (&it.key, !it.ends)) {
            Some((at, element)) if !element.ends => Has::One(at),
            _ => self.or_catch_all(Vec::new()),
        }
    }
}

impl Element {
    /// The conditions that remain for this element. The kernel pads each part of a key to four bytes.
    fn asks(&self, keys: &[Key], flow: Flow) -> Option<Asks> {
        let (mut asks, mut at) = (Asks::default(), 0);
        for key in keys {
            let Some(size) = key.size() else {
                // The places of the parts behind it are not known either.
                asks.unknown = true;
                break;
            };
            let part = |bytes: &'_ [u8]| bytes.get(at..at + size).map(<[u8]>::to_vec);
            let (from, to) = (part(&self.key), self.last.as_deref().map_or_else(|| part(&self.key), part));
            match (key, from, to) {
                (Key::ConntrackState, Some(from), Some(to)) if from == to => asks.states &= single_state(&from)?,
                (key, Some(from), Some(to)) => match key.bytes_in(flow) {
                    Some(value) => in_range(&value, &from, &to).then_some(())?,
                    None => asks.unknown = true,
                },
                _ => asks.unknown = true,
            }
            at += size.next_multiple_of(4);
        }
        (asks.states != 0).then_some(asks)
    }
}

/// The one state of a value in host byte order; absent: no packet has such a value.
fn single_state(value: &[u8]) -> Option<u8> {
    let number = u32::from_ne_bytes(value.try_into().ok()?);
    u8::try_from(number).ok().filter(|bits| bits.count_ones() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::address;

    fn flow() -> Flow {
        Flow { src: address("10.88.0.1:0"), dst: address("10.96.0.9:80") }
    }

    fn element(key: &[u8]) -> Element {
        Element { key: key.to_vec(), ..Element::default() }
    }

    fn ports(ranges: &[(u16, bool)]) -> Elements {
        let one = |(port, ends): &(u16, bool)| Element { ends: *ends, ..element(&port.to_be_bytes()) };
        Elements(ranges.iter().map(one).collect())
    }

    fn is_one(elements: &Elements, keys: &[Key]) -> Option<usize> {
        match elements.has(keys, flow()) {
            Has::One(at) => Some(at),
            Has::Some(some) => {
                assert!(some.is_empty(), "{some:?}");
                None
            }
        }
    }

    /// Sets such as `{ 22, 80-90 }`, as the kernel stores them: the key that ends a range is the first value after it.
    #[test]
    fn a_range_holds_ports_below_the_key_that_ends_it() {
        let has = |ranges: &[(u16, bool)]| is_one(&ports(ranges), &[Key::DestinationPort]).is_some();
        assert!(has(&[(91, true), (80, false), (23, true), (22, false)]));
        assert!(!has(&[(22, false), (23, true), (81, false), (90, true)]));
        assert!(!has(&[(70, false), (80, true)]));
        assert!(has(&[(70, false), (80, true), (80, false), (81, true)]), "two ranges that touch");
        assert!(has(&[(0, true), (70, false)]), "without an end");
    }

    #[test]
    fn the_parts_of_a_concatenated_key_are_compared_one_by_one() {
        let keys = [Key::DestinationAddress(4), Key::Protocol, Key::DestinationPort];
        let key = |addr: [u8; 4], port: u16| [&addr[..], &[6, 0, 0, 0], &port.to_be_bytes(), &[0, 0]].concat();
        let one = |key: Vec<u8>, last| is_one(&Elements(vec![Element { last, ..element(&key) }]), &keys).is_some();
        assert!(one(key([10, 96, 0, 9], 80), None));
        assert!(!one(key([10, 96, 0, 9], 81), None) && !one(key([10, 96, 0, 8], 80), None));
        assert!(one(key([10, 96, 0, 0], 1), Some(key([10, 96, 0, 255], 100))));
        assert!(!one(key([10, 96, 0, 0], 81), Some(key([10, 96, 1, 255], 100))), "each part has its own range");
    }

    /// `iifname . tcp dport { "cni0" . 8080 }`: the name has 16 bytes.
    #[test]
    fn nothing_is_known_of_parts_behind_one_of_unknown_size() {
        let key = |port: u16| [&b"cni0"[..], &[0; 12], &port.to_be_bytes(), &[0, 0]].concat();
        let elements = Elements(vec![element(&key(80)), element(&key(81))]);
        let unknown = |keys: &[Key]| match elements.has(keys, flow()) {
            Has::Some(some) => some.iter().all(|(asks, _)| asks.unknown).then_some(some.len()),
            Has::One(_) => None,
        };
        assert_eq!(unknown(&[Key::Other, Key::DestinationPort]), Some(2));
        let before = Elements(vec![element(&[&80_u16.to_be_bytes()[..], &[0; 18]].concat()), element(&[0; 20])]);
        assert!(matches!(before.has(&[Key::DestinationPort, Key::Other], flow()), Has::Some(some) if some.len() == 1));
    }

    #[test]
    fn fields_that_the_flow_does_not_have_remain_conditions() {
        let sports = Elements(vec![element(&40_000_u16.to_be_bytes())]);
        assert!(matches!(sports.has(&[Key::SourcePort], flow()), Has::Some(some) if some[0].0.unknown));
        let states = Elements(vec![element(&2_u32.to_ne_bytes()), element(&4_u32.to_ne_bytes())]);
        let Has::Some(some) = states.has(&[Key::ConntrackState], flow()) else {
            panic!("the state of the packet is not known")
        };
        assert_eq!(some.iter().map(|(asks, _)| asks.states).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn the_catch_all_element_matches_if_no_other_does() {
        let all = Element { catches_all: true, ..Element::default() };
        let with = |port: u16| Elements(vec![all.clone(), element(&port.to_be_bytes())]);
        assert_eq!(is_one(&with(80), &[Key::DestinationPort]), Some(1));
        assert_eq!(is_one(&with(81), &[Key::DestinationPort]), Some(0));
    }

    #[test]
    fn sets_add_or_exclude_states() {
        let states = Elements(vec![element(&2_u32.to_ne_bytes()), element(&4_u32.to_ne_bytes())]);
        let mut table = Table::for_tests(vec![]);
        table.sets = [("ports".into(), ports(&[(80, false), (81, true)])), ("states".into(), states)].into();
        let asks = |rest: &[Test]| Rule { rest: rest.to_vec(), ..Rule::default() }.asks(flow(), &table);
        let set = |set: &str, key, inverted| Test::Set { keys: vec![key], set: set.into(), inverted };
        let [within, outside] = [false, true].map(|inverted| set("ports", Key::DestinationPort, inverted));
        assert_eq!((asks(&[within]), asks(&[outside])), (Some(Asks::default()), None));
        let [one, none] = [false, true].map(|inverted| set("states", Key::ConntrackState, inverted));
        assert_eq!(asks(std::slice::from_ref(&one)).map(|it| it.states), Some(6));
        assert_eq!(asks(&[none]).map(|it| it.states), Some(!6));
        assert_eq!(asks(&[one, Test::State(state::NEW)]), None);
    }
}
