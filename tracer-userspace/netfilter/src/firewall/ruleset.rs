//! The rules of a namespace as either backend has them: what [`nft`](super::nft) and [`legacy`](super::legacy) read, and
//! [`drops`](super::drops) and [`path`](super::path) follow.
//!
//! Only what matters is kept: rules that drop, reject, jump, or leave their chain.

use std::collections::HashMap;

use tracer_model::event::path::FlagTest;
use tracer_model::event::{Backend, When};

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

/// Where a base chain hangs.
#[derive(Debug)]
pub(crate) struct Base {
    pub hook: &'static str,
    pub priority: i32,
    /// It translates addresses, and only the first packet of a connection comes to it.
    pub translates: bool,
    /// Its policy drops.
    pub drops: bool,
    /// Packets that the policy dropped, where it counts.
    pub packets: Option<u64>,
}

/// A rule, or an element of a verdict map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub handle: Option<u64>,
    pub when: When,
    /// What it asks for beyond that.
    pub rest: Vec<Test>,
    pub then: Then,
    pub comment: Option<String>,
    pub packets: Option<u64>,
}

/// What becomes of a packet that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Then {
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
    /// What the verdict map of this name says of these fields.
    Map(String, Vec<Key>),
}

/// A rule, an element of the verdict map that it looks into, or the policy of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// The number of the table.
    pub table: usize,
    pub chain: usize,
    /// Absent: the policy.
    pub rule: Option<usize>,
    pub element: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    State(u8),
    Flags(FlagTest),
    /// A field that lies in a range, both ends included, or does not.
    Range {
        key: Key,
        from: Vec<u8>,
        to: Vec<u8>,
        inverted: bool,
    },
    /// Fields that a set has, or does not have.
    Set {
        keys: Vec<Key>,
        set: String,
        inverted: bool,
    },
    /// Something that is not understood.
    Unknown,
}

impl Test {
    /// What it takes up beside itself.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Range { from, to, .. } => from.len() + to.len(),
            Self::Set { keys, set, .. } => size_of_val(keys.as_slice()) + set.len(),
            Self::State(_) | Self::Flags(_) | Self::Unknown => 0,
        }
    }
}

/// The elements of a set or of a verdict map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements(pub(crate) Vec<Element>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its key, or the first of its keys.
    pub key: Vec<u8>,
    /// The last of its keys, part by part.
    pub last: Option<Vec<u8>>,
    /// It ends the range that the element before it begins, and is not in it.
    pub ends: bool,
    /// It has what no other element has.
    pub catches_all: bool,
}

impl Element {
    /// What it takes up.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.last.as_ref().map_or(0, Vec::len)
    }
}

/// A field of a packet that a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Family,
    Protocol,
    SourcePort,
    DestinationPort,
    /// Of that many bytes.
    SourceAddress(usize),
    DestinationAddress(usize),
    ConntrackState,
    TcpFlags,
    /// The link over which the way back leads: 0 if none is.
    WayBack,
    Other,
}

#[cfg(test)]
impl Table {
    /// A table of nftables for both families.
    pub(crate) fn for_tests(chains: Vec<Chain>) -> Self {
        let (maps, sets) = Default::default();
        Self { backend: Backend::Nftables, family: "inet", name: "t".into(), chains, maps, sets }
    }
}
