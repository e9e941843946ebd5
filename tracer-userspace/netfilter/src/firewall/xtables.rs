//! Matches and targets of x_tables, which the legacy ip_tables and iptables-nft share.

use super::super::TCP;
use super::ruleset::{Key, Rule, Test, Then};
use tracer_model::event::path::FlagTest;
use tracer_model::event::path::state::{INVALID, NEW, UNTRACKED};
use tracer_model::event::{Limit, When};
use tracer_node::netlink::{field, text};

/// `XT_TCP_INV_*`, linux/netfilter/xt_tcpudp.h
const TCP_INV_SRCPT: u8 = 0x01;
const TCP_INV_DSTPT: u8 = 0x02;
const TCP_INV_FLAGS: u8 = 0x04;
/// `XT_CONNTRACK_*`, linux/netfilter/xt_conntrack.h. The second bit only marks that the rule was written as `-m state`.
const CONNTRACK_STATE: u16 = 1;
const CONNTRACK_STATE_ALIAS: u16 = 1 << 13;
/// The states with the same bits in both matches and in nftables.
const STATES: u32 = 0x0f;
/// `XT_CONNTRACK_STATE_UNTRACKED`, `XT_STATE_UNTRACKED`
const CONNTRACK_UNTRACKED: u32 = 1 << 8;
const STATE_UNTRACKED: u32 = 1 << 6;
/// `XT_RPFILTER_INVERT`, linux/netfilter/xt_rpfilter.h
const RPFILTER_INVERT: u8 = 0x08;

pub(super) fn add_match(rule: &mut Rule, name: &[u8], info: &[u8]) {
    let understood = match name {
        b"comment" => {
            rule.comment = Some(text(info));
            Some(())
        }
        b"tcp" => tcp(rule, info),
        b"conntrack" => conntrack(rule, info),
        b"state" => field(info, 0).and_then(|states| state(rule, u32::from_ne_bytes(states), STATE_UNTRACKED, false)),
        b"rpfilter" => {
            rule.when.rpf |= info.first().is_some_and(|flags| flags & RPFILTER_INVERT != 0);
            None
        }
        _ => None,
    };
    if understood.is_none() {
        rule.rest.push(limit(name));
    }
}

/// The condition of a match of x_tables, or of an expression of nf_tables, that limits.
pub(super) fn limit(name: &[u8]) -> Test {
    match name {
        b"limit" | b"hashlimit" => Test::Limit(Limit::Rate),
        b"connlimit" => Test::Limit(Limit::Connections),
        b"statistic" => Test::Limit(Limit::Share),
        _ => Test::Unknown,
    }
}

/// `struct xt_tcp`: first and last source port, the same for the destination, option, flag mask, flags, inversions. `None` if it
/// has a condition that tracer does not model.
fn tcp(rule: &mut Rule, info: &[u8]) -> Option<()> {
    let [option, mask, value, inverted] = field(info, 8)?;
    let one = When { protocol: Some(TCP), ..When::default() };
    let mut understood = rule.when.take(one, false) && option == 0;
    understood &= inverted & !(TCP_INV_SRCPT | TCP_INV_DSTPT | TCP_INV_FLAGS) == 0;
    if mask != 0 || inverted & TCP_INV_FLAGS != 0 {
        rule.take_flags(FlagTest { mask, value, inverted: inverted & TCP_INV_FLAGS != 0 });
    }
    let (sport, dport) = (inverted & TCP_INV_SRCPT != 0, inverted & TCP_INV_DSTPT != 0);
    port(rule, info, 0, sport, Key::SourcePort, |sport| When { sport, ..When::default() })?;
    port(rule, info, 4, dport, Key::DestinationPort, |dport| When { dport, ..When::default() })?;
    understood.then_some(())
}

/// Adds a condition on a port or a range of ports.
fn port(
    rule: &mut Rule,
    info: &[u8],
    at: usize,
    inverted: bool,
    key: Key,
    condition: impl FnOnce(Option<u16>) -> When,
) -> Option<()> {
    let [first, last] = [at, at + 2].map(|at| field(info, at).map(u16::from_ne_bytes));
    let (first, last) = (first?, last?);
    if first == last {
        return rule.when.take(condition(Some(first)), inverted).then_some(());
    }
    if (first, last) != (0, u16::MAX) || inverted {
        let [from, to] = [first, last].map(|port| port.to_be_bytes().to_vec());
        rule.rest.push(Test::Range { key, from, to, inverted });
    }
    Some(())
}

/// `struct xt_conntrack_mtinfo3`: match flags, inverted flags, states.
fn conntrack(rule: &mut Rule, info: &[u8]) -> Option<()> {
    let [flags, inverted, states] = [146, 148, 150].map(|at| field(info, at).map(u16::from_ne_bytes));
    let (flags, inverted) = (flags? & !CONNTRACK_STATE_ALIAS, inverted? & !CONNTRACK_STATE_ALIAS);
    let of_state = if flags & CONNTRACK_STATE == 0 {
        None
    } else {
        state(rule, u32::from(states?), CONNTRACK_UNTRACKED, inverted & CONNTRACK_STATE != 0)
    };
    of_state.filter(|()| (flags | inverted) == CONNTRACK_STATE)
}

/// Adds the condition that the packet's state is one of these, or (`inverted`) none of them. `untracked` is the bit for packets
/// that conntrack does not track.
fn state(rule: &mut Rule, states: u32, untracked: u32, inverted: bool) -> Option<()> {
    let only = |state: u8| states == u32::from(state) && !inverted;
    if only(INVALID) || only(NEW) {
        (rule.when.invalid, rule.when.new) = (rule.when.invalid || only(INVALID), rule.when.new || only(NEW));
        return Some(());
    }
    let known = (states & STATES) as u8 | if states & untracked == 0 { 0 } else { UNTRACKED };
    // The other bits are for translated addresses.
    let understood = states & !(STATES | untracked) == 0;
    if understood || inverted {
        rule.rest.push(Test::State(if inverted { !known } else { known }));
    }
    understood.then_some(())
}

impl Rule {
    pub(super) fn take_flags(&mut self, test: FlagTest) {
        self.when.take_flags(test.mask, test.value, test.inverted);
        self.rest.push(Test::Flags(test));
    }
}

/// `struct xt_tproxy_target_info`, linux/netfilter/xt_TPROXY.h: mark mask, mark, IPv4 address, port. The second version has
/// room for an IPv6 address.
const TPROXY_PORT: usize = 12;
const TPROXY_PORT_V1: usize = 24;

/// The effect of a target that ends a packet's path through its base chain. A queued or translated packet continues at the next
/// base chain (`nf_reinject`, `nf_nat_setup_info`). SYNPROXY accepts or drops the packet.
pub(super) fn target(name: &[u8], info: &[u8]) -> Option<Then> {
    match name {
        b"REJECT" => Some(Then::Reject),
        b"NFQUEUE" | b"DNAT" | b"SNAT" | b"MASQUERADE" | b"REDIRECT" | b"NETMAP" | b"SYNPROXY" => Some(Then::Accept),
        b"TPROXY" => {
            let port = field(info, TPROXY_PORT_V1).or_else(|| field(info, TPROXY_PORT));
            Some(port.map_or(Then::Accept, |port| Then::Proxy(u16::from_be_bytes(port))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &[u8], info: &[u8]) -> (When, bool) {
        let mut rule = Rule::default();
        add_match(&mut rule, name, info);
        (rule.when, rule.exact())
    }

    fn tcp(sport: [u16; 2], dport: [u16; 2], rest: [u8; 4]) -> (When, bool) {
        let mut info: Vec<u8> = [sport, dport].concat().iter().flat_map(|port| port.to_ne_bytes()).collect();
        info.extend(rest);
        read(b"tcp", &info)
    }

    const ANY: [u16; 2] = [0, u16::MAX];

    #[test]
    fn an_inverted_port_does_not_change_the_other_port() {
        let ports = |when: When| (when.sport, when.dport, when.not.sport, when.not.dport);
        let (when, exact) = tcp([53; 2], [80; 2], [0, 0, 0, TCP_INV_SRCPT]);
        assert_eq!((ports(when), exact), ((None, Some(80), Some(53), None), true));
        let (when, exact) = tcp([53; 2], [80; 2], [0, 0, 0, TCP_INV_DSTPT]);
        assert_eq!((ports(when), exact), ((Some(53), None, None, Some(80)), true));
        let (when, exact) = tcp(ANY, [80; 2], [0, 0, 0, 0]);
        assert_eq!((ports(when), exact, when.protocol), ((None, Some(80), None, None), true, Some(TCP)));
        assert!(!tcp([1, 9], [80; 2], [0; 4]).1 && !tcp(ANY, ANY, [0, 0, 0, TCP_INV_DSTPT]).1);
    }

    #[test]
    fn the_port_of_a_transparent_proxy_is_read_in_both_versions() {
        let read = |size: usize, at: usize| {
            let mut info = vec![0; size];
            info.get_mut(at..at + 2).into_iter().for_each(|port| port.copy_from_slice(&15006_u16.to_be_bytes()));
            target(b"TPROXY", &info)
        };
        assert_eq!((read(16, 12), read(32, 24)), (Some(Then::Proxy(15006)), Some(Then::Proxy(15006))));
        assert_eq!(read(8, 8), Some(Then::Accept), "cut short");
    }

    /// Calico's `-m rpfilter --validmark --invert -j DROP`, and firewalld's `-m rpfilter -j ACCEPT`.
    #[test]
    fn an_inverted_rpfilter_match_is_a_reverse_path_check() {
        let (fails, passes) = (read(b"rpfilter", &[0x0a]), read(b"rpfilter", &[0x02]));
        assert_eq!((fails.0.rpf, fails.1, passes.0.rpf, passes.1), (true, false, false, false));
    }

    #[test]
    fn conditions_on_flags_and_options_do_not_change_the_ports() {
        let (when, exact) = tcp(ANY, [80; 2], [0, 0x17, 0x02, TCP_INV_FLAGS]);
        assert_eq!((when.dport, when.not.syn, exact), (Some(80), true, false), "! --syn");
        let (when, exact) = tcp(ANY, [80; 2], [0, 0x17, 0x02, 0]);
        assert_eq!((when.dport, when.not.syn, exact), (Some(80), false, false), "--syn");
        let (when, exact) = tcp(ANY, [80; 2], [2, 0, 0, 0x08]);
        assert_eq!((when.dport, when.not.syn, exact), (Some(80), false, false), "! --tcp-option 2");
        assert_eq!(read(b"tcp", &[0; 11]), (When::default(), false), "cut short");
    }

    #[test]
    fn states_are_distinguished_from_their_inversion() {
        let read = |flags: u16, inverted: u16, states: u8| {
            let mut info = vec![0; 164];
            for (at, value) in [(146, flags), (148, inverted), (150, states.into())] {
                info[at..at + 2].copy_from_slice(&value.to_ne_bytes());
            }
            let (when, exact) = read(b"conntrack", &info);
            (when.invalid, when.new, exact)
        };
        assert_eq!(read(1, 0, INVALID), (true, false, true));
        assert_eq!(read(1, 0, NEW), (false, true, true));
        assert_eq!(read(1 | 1 << 13, 0, NEW), (false, true, true), "-m state --state NEW");
        assert_eq!(read(1, 1, INVALID), (false, false, false), "! --ctstate INVALID");
        assert_eq!(read(1, 1, 0x86), (false, false, false), "! --ctstate RELATED,ESTABLISHED,DNAT");
        assert_eq!(read(1, 0, INVALID | NEW), (false, false, false));
        assert_eq!(read(1 | 1 << 3, 1 << 3, NEW), (false, true, false), "--ctstate NEW ! --ctorigdst");
        assert_eq!(read(1 << 3, 0, NEW), (false, false, false), "no state is asked for");
    }
}
