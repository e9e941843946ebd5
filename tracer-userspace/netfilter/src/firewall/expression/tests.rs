use super::super::super::nft::attr as nla;
use super::*;

#[test]
fn masks_become_prefix_lengths() {
    assert_eq!(contiguous(&[255, 255, 240, 0]), Some(20));
    assert_eq!(contiguous(&[255, 0, 255, 0]), None);
    assert_eq!(contiguous(&[0; 4]), Some(0));
    let shown = prefix(&[10, 88], None).map(|it| (it.addr.to_string(), it.len));
    assert_eq!(shown, Some(("10.88.0.0".to_owned(), 16)));
}

fn expression(name: &[u8], attrs: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let data: Vec<u8> = attrs.iter().flat_map(|(number, value)| nla(*number, value)).collect();
    nla(1, &[nla(1, name), nla(2, &data)].concat())
}

fn payload(base: i32, offset: i32, length: i32) -> Vec<u8> {
    let attrs = [(2, base), (3, offset), (4, length)];
    expression(b"payload\0", &attrs.map(|(number, value)| (number, value.to_be_bytes().to_vec())))
}

fn value(bytes: &[u8]) -> Vec<u8> {
    nla(NFTA_DATA_VALUE, bytes)
}

fn bitwise(mask: &[u8], xor: &[u8]) -> Vec<u8> {
    expression(b"bitwise\0", &[(NFTA_BITWISE_MASK, value(mask)), (NFTA_BITWISE_XOR, value(xor))])
}

fn cmp(operator: i32, bytes: &[u8]) -> Vec<u8> {
    expression(b"cmp\0", &[(2, operator.to_be_bytes().to_vec()), (3, value(bytes))])
}

fn rule(expressions: &[Vec<u8>]) -> Rule {
    let attrs =
        [nla(NFTA_RULE_TABLE, b"t\0"), nla(NFTA_RULE_CHAIN, b"c\0"), nla(NFTA_RULE_EXPRESSIONS, &expressions.concat())];
    parse_rule(2, &attrs.concat()).expect("a rule").rule
}

/// `ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8`, as nft and iptables-nft load whole bytes.
#[test]
fn not_equal_conditions_are_kept() {
    let (saddr, daddr) = (payload(NETWORK_HEADER, 12, 1), payload(NETWORK_HEADER, 16, 1));
    let found = rule(&[saddr, cmp(NFT_CMP_NEQ, &[127]), daddr, cmp(NFT_CMP_EQ, &[127])]);
    let local = prefix(&[127], None);
    assert_eq!((found.when.not.src, found.when.src, found.when.dst, found.exact()), (local, None, local, true));
    let masked =
        [payload(NETWORK_HEADER, 12, 4), bitwise(&[255, 128, 0, 0], &[0; 4]), cmp(NFT_CMP_NEQ, &[10, 0, 0, 0])];
    assert_eq!(rule(&masked).when.not.src.map(|it| it.len), Some(9));
    let port = rule(&[payload(TRANSPORT_HEADER, 2, 2), cmp(NFT_CMP_NEQ, &80_u16.to_be_bytes())]);
    assert_eq!((port.when.not.dport, port.when.dport, port.exact()), (Some(80), None, true));
    let less = rule(&[payload(TRANSPORT_HEADER, 2, 2), cmp(2, &80_u16.to_be_bytes())]);
    assert_eq!((less.when.not.dport, less.when.dport, less.exact()), (None, None, false));
}

/// `tcp dport 80-90`, as nft writes it.
#[test]
fn both_ends_of_a_range_are_compared() {
    let port = |operator, port: u16| cmp(operator, &port.to_be_bytes());
    let load = || payload(TRANSPORT_HEADER, 2, 2);
    let range =
        |tests: &[Test]| tests.iter().map(|it| matches!(it, Test::Range { key: Key::DestinationPort, .. })).collect();
    let kinds = |expressions: &[Vec<u8>]| -> Vec<bool> { range(&rule(expressions).rest) };
    assert_eq!(kinds(&[load(), port(NFT_CMP_GTE, 80), port(NFT_CMP_LTE, 90)]), [true, true]);
    let masked = bitwise(&[0xff, 0xfe], &[0; 2]);
    assert_eq!(kinds(&[load(), port(NFT_CMP_GTE, 80), masked, port(NFT_CMP_LTE, 90)]), [true, false]);
    assert_eq!(kinds(&[port(NFT_CMP_LTE, 90)]), [false]);
}

/// The rule ends at `flow add @ft` for a packet that is not offloaded.
#[test]
fn a_rule_that_offloads_flows_does_not_take_each_packet() {
    let accept = nla(NFTA_VERDICT_CODE, &NF_ACCEPT.to_be_bytes());
    let immediate =
        expression(b"immediate\0", &[(1, 0_i32.to_be_bytes().to_vec()), (2, nla(NFTA_DATA_VERDICT, &accept))]);
    let found = rule(&[expression(b"flow_offload\0", &[]), immediate]);
    assert_eq!((found.then.clone(), found.exact()), (Then::Accept, false));
}

#[test]
fn a_counter_before_a_condition_counts_other_packets_too() {
    let counter = || expression(b"counter\0", &[(NFTA_COUNTER_PACKETS, 7_u64.to_be_bytes().to_vec())]);
    let port = || [payload(TRANSPORT_HEADER, 2, 2), cmp(NFT_CMP_EQ, &80_u16.to_be_bytes())].concat();
    assert_eq!(rule(&[port(), counter()]).packets, Some(7));
    assert_eq!(rule(&[port(), counter(), expression(b"limit\0", &[])]).packets, None);
    assert_eq!(rule(&[counter(), port()]).packets, None);
}

/// `queue num 0`, `dnat to …`, and what iptables-nft writes for `-j NFQUEUE` and `-j DNAT`.
#[test]
fn queued_and_translated_packets_leave_the_base_chain() {
    let target = |name: &[u8]| rule(&[expression(b"target\0", &[(1, name.to_vec())])]).then;
    for name in [&b"queue\0"[..], b"nat\0", b"masq\0", b"redir\0"] {
        assert_eq!(rule(&[expression(name, &[])]).then, Then::Accept, "{}", name.escape_ascii());
    }
    let targets = [&b"NFQUEUE\0"[..], b"DNAT\0", b"REJECT\0", b"LOG\0"].map(target);
    assert_eq!(targets, [Then::Accept, Then::Accept, Then::Reject, Then::Nothing]);
    let code = |code: i32| verdict(&nla(NFTA_VERDICT_CODE, &code.to_be_bytes()));
    assert_eq!([NF_QUEUE, -1].map(code), [Some(Then::Accept), None]);
}

#[test]
fn a_value_with_flipped_bits_is_not_modelled() {
    let turned = [payload(NETWORK_HEADER, 12, 4), bitwise(&[255; 4], &[1, 0, 0, 0]), cmp(NFT_CMP_EQ, &[10, 0, 0, 0])];
    assert_eq!((rule(&turned).when.src, rule(&turned).exact()), (None, false));
    let shifted = [payload(NETWORK_HEADER, 12, 4), expression(b"bitwise\0", &[]), cmp(NFT_CMP_EQ, &[10, 0, 0, 0])];
    assert_eq!((rule(&shifted).when.src, rule(&shifted).exact()), (None, false));
}

#[test]
fn flag_conditions_show_whether_a_syn_can_match() {
    let flags = |operator, value: u8| {
        rule(&[payload(TRANSPORT_HEADER, 13, 1), bitwise(&[0x17], &[0]), cmp(operator, &[value])])
    };
    let without = |rule: Rule| (rule.when.not.syn, rule.exact());
    assert_eq!([flags(NFT_CMP_EQ, 0x02), flags(NFT_CMP_NEQ, 0x02)].map(without), [(false, false), (true, false)]);
    assert!(without(flags(NFT_CMP_EQ, 0x12)).0);
}

#[test]
fn each_part_of_a_map_key_is_parsed() {
    let parts = [Key::DestinationAddress(4), Key::Protocol, Key::DestinationPort];
    let when = Key::conditions(&parts, &[10, 96, 0, 9, 6, 0, 0, 0, 0, 80, 0, 0]).expect("conditions");
    assert_eq!((when.dst.map(|it| it.len), when.protocol, when.dport), (Some(32), Some(6), Some(80)));
    assert_eq!(Key::conditions(&[Key::Other], &[0; 4]), None);
    assert_eq!(Key::conditions(&parts, &[10, 96]), None);
}

/// `fib saddr . mark . iif oif missing`, as firewalld and Calico have it; `exists`; `fib daddr . iif oif missing`;
/// `fib saddr type local`.
#[test]
fn a_reverse_path_check_is_recognised() {
    let reported = |result: i32, flags: i32, value: u8| {
        let attrs = [(NFTA_FIB_RESULT, result), (NFTA_FIB_FLAGS, flags)];
        let fib = expression(b"fib\0", &attrs.map(|(number, value)| (number, value.to_be_bytes().to_vec())));
        let found = rule(&[fib, cmp(NFT_CMP_EQ, &[value])]);
        assert!(!found.exact());
        found.when.rpf
    };
    let (source, destination) = (1 | 4 | 8 | 32, 2 | 8 | 32);
    assert!(reported(1, source, 0) && reported(2, source, 0));
    assert!(!reported(1, source, 1) && !reported(1, destination, 0) && !reported(3, source, 0));
}

/// `limit rate over 5/second`, `ct count over 20`, `numgen random mod 10 < 3`, and a meter.
#[test]
fn a_limit_differs_from_other_conditions() {
    let limit = |expressions: &[Vec<u8>]| rule(expressions).limit();
    let numgen = || expression(b"numgen\0", &[]);
    assert_eq!(limit(&[expression(b"limit\0", &[])]), Some(Limit::Rate));
    assert_eq!(limit(&[expression(b"connlimit\0", &[])]), Some(Limit::Connections));
    assert_eq!(limit(&[numgen(), cmp(NFT_CMP_LT, &3_u32.to_be_bytes())]), Some(Limit::Share));
    assert_eq!(limit(&[numgen(), expression(b"range\0", &[])]), Some(Limit::Share));
    let meter = |of: &[u8]| expression(b"dynset\0", &[(NFTA_DYNSET_EXPR, nla(1, of))]);
    assert_eq!(limit(&[meter(b"limit\0")]), Some(Limit::Rate));
    let others = [meter(b"counter\0"), expression(b"quota\0", &[]), payload(TRANSPORT_HEADER, 2, 2)];
    assert_eq!(others.map(|other| limit(&[other])), [None; 3]);
}
