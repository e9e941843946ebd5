//! The rules of a network namespace in one form for both backends. [`nft`](super::nft) and [`legacy`](super::legacy) read them;
//! [`drops`](super::drops) and [`path`](super::path) follow them.
//!
//! Only rules that drop, reject, jump, or leave their chain are kept.

use std::collections::HashMap;

use tracer_model::event::path::FlagTest;
use tracer_model::event::{Backend, Limit, When};

#[derive(Debug)]
pub(crate) struct Table {
    pub backend: Backend,
    pub family: &'static str,
    pub name: String,
    pub chains: Vec<Chain>,
    /// Elements of verdict maps.
    pub maps: HashMap<String, Vec<Rule>>,
    /// Keys of the elements of sets, and of verdict maps in the order of `maps`.
    pub sets: HashMap<String, Elements>,
}

#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub name: String,
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// Where a base chain is attached, and its policy.
#[derive(Debug, Default)]
pub(crate) struct Base {
    pub hook: &'static str,
    pub priority: i32,
    /// Whether it translates addresses. The kernel calls such a chain only for the first packet of a connection.
    pub translates: bool,
    pub drops: bool,
    /// How many packets the policy dropped; absent if it does not count them.
    pub packets: Option<u64>,
}

/// A rule, or an element of a verdict map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub handle: Option<u64>,
    pub when: When,
    /// Conditions that `when` cannot express.
    pub rest: Vec<Test>,
    pub then: Then,
    pub comment: Option<String>,
    pub packets: Option<u64>,
}

/// What the rule does with a matching packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Then {
    /// The packet continues at the next rule.
    #[default]
    Nothing,
    /// The packet leaves the base chain.
    Accept,
    Drop,
    Reject,
    /// The packet leaves the base chain if a transparent proxy listens on this port (0: its own), else it is dropped.
    Proxy(u16),
    Jump(String),
    Goto(String),
    /// The packet leaves the chain.
    Return,
    /// The verdict map of this name decides, by these fields.
    Map(String, Vec<Key>),
}

/// The place of a rule, of an element of the verdict map that it uses, or of the policy of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Index of the table.
    pub table: usize,
    pub chain: usize,
    /// Absent for the policy.
    pub rule: Option<usize>,
    pub element: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    State(u8),
    Flags(FlagTest),
    /// A field is in a range, both ends included, or (`inverted`) is not.
    Range {
        key: Key,
        from: Vec<u8>,
        to: Vec<u8>,
        inverted: bool,
    },
    /// A set contains these fields, or (`inverted`) does not.
    Set {
        keys: Vec<Key>,
        set: String,
        inverted: bool,
    },
    Limit(Limit),
    /// A condition that tracer does not model.
    Unknown,
}

impl Test {
    /// Heap memory of this test.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Range { from, to, .. } => from.len() + to.len(),
            Self::Set { keys, set, .. } => size_of_val(keys.as_slice()) + set.len(),
            Self::State(_) | Self::Flags(_) | Self::Limit(_) | Self::Unknown => 0,
        }
    }
}

/// The elements of a set or of a verdict map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements(pub(crate) Vec<Element>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its key, or the first key of its range.
    pub key: Vec<u8>,
    /// The last key of its range; each part has its own range.
    pub last: Option<Vec<u8>>,
    /// Whether it ends the range of the element before it. The key itself is not in that range.
    pub ends: bool,
    /// Whether it matches all that no other element matches.
    pub catches_all: bool,
}

impl Element {
    /// Memory of this element.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.last.as_ref().map_or(0, Vec::len)
    }
}

/// A field of a packet that a rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Family,
    Protocol,
    SourcePort,
    DestinationPort,
    /// The first bytes of the address, this many.
    SourceAddress(usize),
    DestinationAddress(usize),
    ConntrackState,
    TcpFlags,
    /// The link of the route back to the source; 0 if there is none.
    ReversePath,
    /// A number by chance, or one of each n packets.
    Share,
    Other,
}

impl Table {
    /// A table without maps and sets.
    pub(super) fn new(backend: Backend, family: &'static str, name: String, chains: Vec<Chain>) -> Self {
        Self { backend, family, name, chains, maps: HashMap::new(), sets: HashMap::new() }
    }

    /// A table of nftables for both families.
    #[cfg(test)]
    pub(crate) fn for_tests(chains: Vec<Chain>) -> Self {
        Self::new(Backend::Nftables, "inet", "t".into(), chains)
    }
}
