//! The way of one flow's packets through a namespace: the rules of each hook in the kernel's order, without the rules
//! that such a packet cannot match.
//!
//! Some conditions do not depend on the flow alone: the state of conntrack, the flags, and what tracer does not
//! understand. They stay in the step, and are evaluated for each packet.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::event::{Flow, TcpFlags, Tracked};

/// Bits of a conntrack state in nftables and the xtables match: `NF_CT_STATE_BIT`,
/// linux/netfilter/nf_conntrack_common.h.
pub mod state {
    /// Found invalid, or not seen by conntrack.
    pub const INVALID: u8 = 1;
    /// Of a connection that was answered.
    pub const ESTABLISHED: u8 = 2;
    /// Begins a connection that another connection announced.
    pub const RELATED: u8 = 4;
    /// Begins a connection.
    pub const NEW: u8 = 8;
    /// Taken out of tracking.
    pub const UNTRACKED: u8 = 64;
    pub const ANY: u8 = 0xff;
}

/// The way of a flow's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The flow, with any port of the client.
    pub flow: Flow,
    /// Base chains that can drop or reject its packets, with the chains that they call.
    pub chains: Vec<BaseChain>,
    /// A chain of the namespace translates addresses: chains before it may see other addresses.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub translates: bool,
}

/// A base chain; the rules of the chains that it calls are in the place of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseChain {
    pub hook: String,
    pub priority: i32,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One rule, or a jump over rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    #[serde(flatten)]
    pub asks: Asks,
    #[serde(flatten)]
    pub then: Onward,
}

/// What happens to a packet. Steps are numbered from 0; the number after the last one is the end of the base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Onward {
    /// This rule takes a packet that meets the conditions. The number is its place in the list of rules.
    Take(usize),
    /// A packet that meets the conditions continues at that later step.
    SkipIf(usize),
    /// A packet that does not meet the conditions continues at that later step.
    SkipUnless(usize),
}

/// The conditions that do not depend on the flow alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asks {
    /// One of these states of conntrack.
    #[serde(skip_serializing_if = "is_any", default = "any")]
    pub states: u8,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<FlagTest>,
    /// A condition that tracer does not understand.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unknown: bool,
}

/// The flags under `mask` are `value`, or are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagTest {
    pub mask: u8,
    pub value: u8,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub inverted: bool,
}

const fn any() -> u8 {
    state::ANY
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_any(states: &u8) -> bool {
    *states == state::ANY
}

impl Default for Asks {
    fn default() -> Self {
        Self { states: state::ANY, flags: Vec::new(), unknown: false }
    }
}

impl Asks {
    /// Whether a packet with this state and these flags meets the conditions; `None` if tracer does not understand them
    /// all.
    pub fn met_by(&self, state: u8, flags: TcpFlags) -> Option<bool> {
        let has = |it: &FlagTest| (flags.0 & it.mask == it.value) != it.inverted;
        if self.states & state == 0 || !self.flags.iter().all(has) {
            return Some(false);
        }
        if self.unknown { None } else { Some(true) }
    }
}

/// What is known of a packet that netfilter dropped.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The hook; absent: any.
    pub hook: Option<&'a str>,
    /// Its state in conntrack; absent: any.
    pub tracked: Option<Tracked>,
    pub flags: TcpFlags,
}

impl Packet<'_> {
    /// The states that conntrack may have given it. A retransmitted SYN can belong to a connection that was answered.
    /// A SYN-ACK begins no connection (`tcp_conntracks`, net/netfilter/nf_conntrack_proto_tcp.c).
    fn states(&self) -> &'static [u8] {
        use state::{ESTABLISHED, INVALID, NEW, RELATED, UNTRACKED};
        match self.tracked {
            Some(Tracked::Yes) if self.flags.is_syn_ack() => &[ESTABLISHED],
            Some(Tracked::Yes) => &[NEW, ESTABLISHED, RELATED],
            Some(Tracked::No) => &[INVALID],
            Some(Tracked::Untracked) => &[UNTRACKED],
            None if self.flags.is_syn_ack() => &[ESTABLISHED, INVALID, UNTRACKED],
            None => &[NEW, ESTABLISHED, RELATED, INVALID, UNTRACKED],
        }
    }
}

/// The rules that can have taken a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takers {
    /// Their places in the list of rules.
    pub rules: BTreeSet<usize>,
    /// In one of its possible states, each such packet is taken by one of them.
    pub take_all: bool,
}

/// The priority at which addresses are translated (`NF_IP_PRI_NAT_DST`), in the hooks that change the header.
const TRANSLATION: i32 = -100;

impl Path {
    /// The path is for packets of this flow.
    pub fn is_of(&self, flow: Flow) -> bool {
        self.flow.covers(flow)
    }

    /// This rule takes only packets that conntrack found invalid, or that it does not track.
    pub fn takes_only_invalid(&self, rule: usize) -> bool {
        let steps = self.chains.iter().flat_map(|chain| &chain.steps).filter(|step| step.then == Onward::Take(rule));
        let mut states = steps.map(|step| step.asks.states).peekable();
        let is_such = |it: u8| it & state::INVALID != 0 && it & !(state::INVALID | state::UNTRACKED) == 0;
        states.peek().is_some() && states.all(is_such)
    }

    /// The rules that can have taken this packet. `took_none`: whether a rule took no packet at that time.
    pub fn takers(&self, packet: &Packet<'_>, took_none: impl Fn(usize) -> bool) -> Takers {
        let hooks: BTreeSet<&str> = self.chains.iter().map(|chain| chain.hook.as_str()).collect();
        let mut takers = Takers::default();
        for hook in hooks.into_iter().filter(|hook| packet.hook.is_none_or(|it| it == *hook)) {
            for state in packet.states() {
                takers.take_all |= !self.passes(hook, *state, packet.flags, &took_none, &mut takers.rules);
            }
        }
        takers
    }

    /// Whether a packet of this state may pass all chains of the hook. The order of chains with one priority is not
    /// known.
    fn passes(
        &self,
        hook: &str,
        state: u8,
        flags: TcpFlags,
        took_none: &impl Fn(usize) -> bool,
        rules: &mut BTreeSet<usize>,
    ) -> bool {
        let mut chains: Vec<&BaseChain> = self.chains.iter().filter(|chain| chain.hook == hook).collect();
        chains.sort_by_key(|chain| chain.priority);
        for together in chains.chunk_by(|left, right| left.priority == right.priority || !is_ordered(hook)) {
            let mut passes = true;
            for chain in together {
                passes &= chain.passes(state, flags, took_none, rules);
            }
            let before = together.iter().any(|chain| self.translates && is_before_translation(hook, chain.priority));
            if !passes && !before && is_ordered(hook) {
                return false;
            }
        }
        true
    }
}

/// Whether the chains of a hook have an order. Chains of `INGRESS` and `EGRESS` may belong to different devices, and
/// `BRIDGE` stands for several hooks.
fn is_ordered(hook: &str) -> bool {
    !matches!(hook, "INGRESS" | "EGRESS" | "BRIDGE")
}

fn is_before_translation(hook: &str, priority: i32) -> bool {
    matches!(hook, "PREROUTING" | "OUTPUT") && priority <= TRANSLATION
}

impl BaseChain {
    /// Adds the rules that may take the packet; returns whether it may pass the chain.
    fn passes(
        &self,
        state: u8,
        flags: TcpFlags,
        took_none: &impl Fn(usize) -> bool,
        rules: &mut BTreeSet<usize>,
    ) -> bool {
        let end = self.steps.len();
        let mut reached = vec![false; end + 1];
        reached[0] = true;
        for (at, step) in self.steps.iter().enumerate() {
            if !reached[at] {
                continue;
            }
            let met = step.asks.met_by(state, flags);
            let (if_met, if_not) = match step.then {
                Onward::Take(rule) if took_none(rule) => (at + 1, at + 1),
                Onward::Take(rule) => {
                    rules.extend((met != Some(false)).then_some(rule));
                    reached[at + 1] |= met != Some(true);
                    continue;
                }
                // A recording may have any number here, but no step leads back.
                Onward::SkipIf(to) => (to.clamp(at + 1, end.max(at + 1)), at + 1),
                Onward::SkipUnless(to) => (at + 1, to.clamp(at + 1, end.max(at + 1))),
            };
            reached[if_met] |= met != Some(false);
            reached[if_not] |= met != Some(true);
        }
        reached[end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::address;

    const SYN: TcpFlags = TcpFlags(0x02);

    fn step(states: u8, then: Onward) -> Step {
        Step { asks: Asks { states, ..Asks::default() }, then }
    }

    fn unknown(then: Onward) -> Step {
        Step { asks: Asks { unknown: true, ..Asks::default() }, then }
    }

    fn chain(hook: &str, priority: i32, steps: Vec<Step>) -> BaseChain {
        BaseChain { hook: hook.into(), priority, steps }
    }

    fn takers(chains: Vec<BaseChain>, hook: Option<&str>, tracked: Option<Tracked>) -> (Vec<usize>, bool) {
        let flow = Flow { src: address("10.88.0.1:0"), dst: address("10.88.0.2:80") };
        let path = Path { flow, chains, translates: true };
        let found = path.takers(&Packet { hook, tracked, flags: SYN }, |rule| rule == 99);
        (found.rules.into_iter().collect(), found.take_all)
    }

    /// kube-proxy 1.36: the map of Services without endpoints comes before the rule for all other cluster addresses.
    #[test]
    fn a_packet_that_a_rule_surely_takes_does_not_reach_the_next_rule() {
        let new = || step(state::NEW, Onward::SkipUnless(3));
        let steps = vec![new(), step(state::ANY, Onward::Take(1)), step(state::ANY, Onward::Take(2))];
        let found = |tracked| takers(vec![chain("OUTPUT", 0, steps.clone())], Some("OUTPUT"), tracked);
        assert_eq!(found(Some(Tracked::Yes)), (vec![1], true));
        assert_eq!(found(Some(Tracked::Untracked)), (vec![], false));
    }

    #[test]
    fn a_condition_that_is_not_understood_may_be_met_or_not() {
        let taken = |steps: Vec<Step>| takers(vec![chain("INPUT", 0, steps)], Some("INPUT"), None);
        let may_skip = [unknown(Onward::SkipIf(2)), step(state::ANY, Onward::Take(1)), unknown(Onward::Take(2))];
        assert_eq!(taken(may_skip.into()), (vec![1, 2], false));
        let took_none = [step(state::ANY, Onward::Take(99)), step(state::ANY, Onward::Take(1))];
        assert_eq!(taken(took_none.into()), (vec![1], true), "a packet passes a rule that took none");
        let steps = vec![unknown(Onward::SkipIf(9)), unknown(Onward::SkipUnless(0)), unknown(Onward::Take(7))];
        let out_of_range = vec![chain("INPUT", 0, steps), chain("INPUT", 0, vec![])];
        assert_eq!(takers(out_of_range, None, None).0, [7], "and no panic");
    }

    #[test]
    fn chains_come_in_the_order_of_their_priorities() {
        let take = |rule| vec![step(state::ANY, Onward::Take(rule))];
        let found = |chains: Vec<BaseChain>, hook| takers(chains, hook, None).0;
        let (late, early) = (|| chain("INPUT", 10, take(1)), || chain("INPUT", 0, take(2)));
        assert_eq!(found(vec![late(), early()], Some("INPUT")), [2]);
        assert_eq!(found(vec![chain("INPUT", 0, take(1)), early()], Some("INPUT")), [1, 2], "either may be first");
        assert_eq!(found(vec![chain("FORWARD", -5, take(1)), early()], None), [1, 2], "another hook");
        assert_eq!(found(vec![chain("BRIDGE", -5, take(1)), chain("BRIDGE", 0, take(2))], Some("BRIDGE")), [1, 2]);
        let before = chain("OUTPUT", -300, take(1));
        assert_eq!(
            found(vec![before, chain("OUTPUT", 0, take(2))], Some("OUTPUT")),
            [1, 2],
            "the header changed since"
        );
    }

    /// A node that accepts what is established and drops the rest.
    #[test]
    fn a_syn_ack_of_a_tracked_connection_is_established() {
        let established = step(state::ESTABLISHED | state::RELATED, Onward::SkipIf(2));
        let chains = vec![chain("INPUT", 0, vec![established, step(state::ANY, Onward::Take(1))])];
        let flow = Flow { src: address("10.88.0.2:80"), dst: address("10.88.0.1:0") };
        let path = Path { flow, chains, translates: true };
        let taken = |flags| {
            let packet = Packet { hook: Some("INPUT"), tracked: Some(Tracked::Yes), flags };
            path.takers(&packet, |_| false).rules.len()
        };
        assert_eq!((taken(SYN), taken(TcpFlags(0x12))), (1, 0));
    }

    #[test]
    fn a_path_is_written_briefly() {
        let steps = vec![step(state::NEW, Onward::SkipUnless(2)), unknown(Onward::Take(1))];
        let text = serde_json::to_string(&steps).expect("text");
        assert_eq!(text, r#"[{"states":8,"skip_unless":2},{"unknown":true,"take":1}]"#);
        assert_eq!(serde_json::from_str::<Vec<Step>>(&text).expect("steps"), steps);
    }
}
