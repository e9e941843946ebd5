//! Matches and targets of x_tables, which the legacy ip_tables and iptables-nft share.

use super::super::TCP;
use super::conntrack::{CT_INVALID, CT_NEW};
use super::tables::{Rule, Then};
use tracer_model::event::When;
use tracer_node::netlink::{field, text};

/// `XT_TCP_INV_*`, linux/netfilter/xt_tcpudp.h
const TCP_INV_SRCPT: u8 = 0x01;
const TCP_INV_DSTPT: u8 = 0x02;
const TCP_INV_FLAGS: u8 = 0x04;
/// `XT_CONNTRACK_*`, linux/netfilter/xt_conntrack.h. The second says only that `-m state` was written.
const CONNTRACK_STATE: u16 = 1;
const CONNTRACK_STATE_ALIAS: u16 = 1 << 13;
/// `XT_RPFILTER_INVERT`, linux/netfilter/xt_rpfilter.h
const RPFILTER_INVERT: u8 = 0x08;

/// Takes in an xtables match; false if it asks for something that is not understood.
pub(super) fn add_match(rule: &mut Rule, name: &[u8], info: &[u8]) -> bool {
    match name {
        b"comment" => {
            rule.comment = Some(text(info));
            true
        }
        b"tcp" => tcp(&mut rule.when, info).unwrap_or(false),
        b"conntrack" => conntrack(&mut rule.when, info).unwrap_or(false),
        b"state" => field(info, 0).is_some_and(|only| state(&mut rule.when, u32::from_ne_bytes(only))),
        b"rpfilter" => {
            rule.when.rpf |= info.first().is_some_and(|flags| flags & RPFILTER_INVERT != 0);
            false
        }
        _ => false,
    }
}

/// `struct xt_tcp`: source and destination ports from and to, option, flag mask, flags, inversions.
fn tcp(when: &mut When, info: &[u8]) -> Option<bool> {
    let [option, mask, value, inverted] = field(info, 8)?;
    let one = When { protocol: Some(TCP), ..When::default() };
    let mut exact = when.take(one, false) && option == 0 && mask == 0;
    exact &= inverted & !(TCP_INV_SRCPT | TCP_INV_DSTPT) == 0;
    when.take_flags(mask, value, inverted & TCP_INV_FLAGS != 0);
    exact &= port(info, 0, inverted & TCP_INV_SRCPT != 0, when, |sport| When { sport, ..When::default() })?;
    exact &= port(info, 4, inverted & TCP_INV_DSTPT != 0, when, |dport| When { dport, ..When::default() })?;
    Some(exact)
}

/// Ports from and to.
fn port(
    info: &[u8],
    at: usize,
    inverted: bool,
    when: &mut When,
    condition: impl FnOnce(Option<u16>) -> When,
) -> Option<bool> {
    let [first, last] = [at, at + 2].map(|at| field(info, at).map(u16::from_ne_bytes));
    Some(match (first?, last?) {
        (0, u16::MAX) => !inverted,
        (first, last) if first == last => when.take(condition(Some(first)), inverted),
        _ => false,
    })
}

/// `struct xt_conntrack_mtinfo3`: match flags, inverted flags, states.
fn conntrack(when: &mut When, info: &[u8]) -> Option<bool> {
    let [flags, inverted, states] = [146, 148, 150].map(|at| field(info, at).map(u16::from_ne_bytes));
    let (flags, inverted) = (flags? & !CONNTRACK_STATE_ALIAS, inverted? & !CONNTRACK_STATE_ALIAS);
    let asked = flags & !inverted & CONNTRACK_STATE != 0;
    let understood = asked && state(when, u32::from(states?));
    Some(understood && flags == CONNTRACK_STATE && inverted == 0)
}

/// Takes in the one state that is asked for; false if it is another than these, or one of several.
fn state(when: &mut When, only: u32) -> bool {
    (when.invalid, when.new) = (when.invalid || only == CT_INVALID, when.new || only == CT_NEW);
    only == CT_INVALID || only == CT_NEW
}

/// What a target does that ends the way of a packet through its base chain. One that is queued or translated goes on with the next
/// base chain (`nf_reinject`, `nf_nat_setup_info`); TPROXY and SYNPROXY take it or drop it.
pub(super) fn target(name: &[u8]) -> Option<Then> {
    match name {
        b"REJECT" => Some(Then::Reject),
        b"NFQUEUE" | b"DNAT" | b"SNAT" | b"MASQUERADE" | b"REDIRECT" | b"NETMAP" | b"TPROXY" | b"SYNPROXY" => {
            Some(Then::Accept)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &[u8], info: &[u8]) -> (When, bool) {
        let mut rule = Rule::default();
        let exact = add_match(&mut rule, name, info);
        (rule.when, exact)
    }

    fn tcp(sport: [u16; 2], dport: [u16; 2], rest: [u8; 4]) -> (When, bool) {
        let mut info: Vec<u8> = [sport, dport].concat().iter().flat_map(|port| port.to_ne_bytes()).collect();
        info.extend(rest);
        read(b"tcp", &info)
    }

    const ANY: [u16; 2] = [0, u16::MAX];

    #[test]
    fn an_inverted_port_leaves_the_other_as_it_is() {
        let ports = |when: When| (when.sport, when.dport, when.not.sport, when.not.dport);
        let (when, exact) = tcp([53; 2], [80; 2], [0, 0, 0, TCP_INV_SRCPT]);
        assert_eq!((ports(when), exact), ((None, Some(80), Some(53), None), true));
        let (when, exact) = tcp([53; 2], [80; 2], [0, 0, 0, TCP_INV_DSTPT]);
        assert_eq!((ports(when), exact), ((Some(53), None, None, Some(80)), true));
        let (when, exact) = tcp(ANY, [80; 2], [0, 0, 0, 0]);
        assert_eq!((ports(when), exact, when.protocol), ((None, Some(80), None, None), true, Some(TCP)));
        assert!(!tcp([1, 9], [80; 2], [0; 4]).1 && !tcp(ANY, ANY, [0, 0, 0, TCP_INV_DSTPT]).1);
    }

    /// Calico's `-m rpfilter --validmark --invert -j DROP`, and firewalld's `-m rpfilter -j ACCEPT`.
    #[test]
    fn a_check_of_the_way_back_is_known_where_it_takes_what_fails_it() {
        let (fails, passes) = (read(b"rpfilter", &[0x0a]), read(b"rpfilter", &[0x02]));
        assert_eq!((fails.0.rpf, fails.1, passes.0.rpf, passes.1), (true, false, false, false));
    }

    #[test]
    fn flags_and_options_leave_the_ports_as_they_are() {
        let (when, exact) = tcp(ANY, [80; 2], [0, 0x17, 0x02, TCP_INV_FLAGS]);
        assert_eq!((when.dport, when.not.syn, exact), (Some(80), true, false), "! --syn");
        let (when, exact) = tcp(ANY, [80; 2], [0, 0x17, 0x02, 0]);
        assert_eq!((when.dport, when.not.syn, exact), (Some(80), false, false), "--syn");
        let (when, exact) = tcp(ANY, [80; 2], [2, 0, 0, 0x08]);
        assert_eq!((when.dport, when.not.syn, exact), (Some(80), false, false), "! --tcp-option 2");
        assert_eq!(read(b"tcp", &[0; 11]), (When::default(), false), "cut short");
    }

    #[test]
    fn states_are_told_apart_from_their_inversion() {
        let read = |flags: u16, inverted: u16, states: u32| {
            let mut info = vec![0; 164];
            for (at, value) in [(146, flags), (148, inverted), (150, states as u16)] {
                info[at..at + 2].copy_from_slice(&value.to_ne_bytes());
            }
            let (when, exact) = read(b"conntrack", &info);
            (when.invalid, when.new, exact)
        };
        assert_eq!(read(1, 0, CT_INVALID), (true, false, true));
        assert_eq!(read(1, 0, CT_NEW), (false, true, true));
        assert_eq!(read(1 | 1 << 13, 0, CT_NEW), (false, true, true), "-m state --state NEW");
        assert_eq!(read(1, 1, CT_INVALID), (false, false, false), "! --ctstate INVALID");
        assert_eq!(read(1, 1, 0x86), (false, false, false), "! --ctstate RELATED,ESTABLISHED,DNAT");
        assert_eq!(read(1, 0, CT_INVALID | CT_NEW), (false, false, false));
        assert_eq!(read(1 | 1 << 3, 1 << 3, CT_NEW), (false, true, false), "--ctstate NEW ! --ctorigdst");
        assert_eq!(read(1 << 3, 0, CT_NEW), (false, false, false), "no state is asked for");
    }
}
