//! Loads rulesets of kube-proxy 1.36 into a network namespace of this kernel. Compares tracer's answer with what a person reads
//! in them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::*;
use tracer_model::event::path::Packet;
use tracer_model::event::{TcpFlags, Tracked};

const NFT: &str = include_str!("../../../testdata/kube-proxy-1.36.nft");
const IPTABLES: &str = include_str!("../../../testdata/kube-proxy-1.36.iptables");

fn run(program: &str, args: &[&str], input: &str) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("its input");
    let status = child.wait().expect("its end");
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// Runs the task on a thread in a new network namespace.
fn in_new_netns<T: Send>(task: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace: needs root");
            task()
        };
        scope.spawn(inside).join().expect("the task")
    })
}

fn flow(dst: Ipv4Addr, port: u16) -> Flow {
    Flow { src: ([10, 89, 0, 1], 0).into(), dst: (dst, port).into() }
}

/// The comments of the rules that tracer names for the SYN of this flow, and whether the SYN may pass all rules.
fn named(hook: &str, dst: Ipv4Addr, port: u16) -> (BTreeSet<String>, bool) {
    let firewall = of_thread(Netns(1), flow(dst, port));
    assert!(firewall.problems.is_empty() && firewall.is_complete_for(flow(dst, port)), "{firewall:?}");
    let packet = Packet { hook: Some(hook), tracked: Some(Tracked::Yes), flags: TcpFlags(0x02) };
    let takers = firewall.path.expect("the way of the flow").takers(&packet, |_| false);
    let comment = |at: &usize| firewall.rules[*at].comment.clone().expect("kube-proxy comments its rules");
    (takers.rules.iter().map(comment).collect(), !takers.take_all)
}

/// The comment of the rule or element of [`NFT`] that drops or rejects a SYN, as a person reads the file.
fn taker(hook: &str, dst: Ipv4Addr, port: u16) -> Option<String> {
    const CLUSTER_IPS: [[u8; 4]; 4] = [[10, 96, 0, 1], [10, 96, 42, 6], [10, 96, 77, 77], [10, 96, 214, 35]];
    let comment = match (dst.octets(), port) {
        ([10, 96, 77, 77], 80) => "default/circ:http has no endpoints",
        // `filter-input` does not jump to `cluster-ips-check`.
        _ if hook == "INPUT" => return None,
        (addr, _) if CLUSTER_IPS.contains(&addr) => "Reject traffic to invalid ports of ClusterIPs",
        ([10, 96, ..], _) => "Drop traffic to unallocated ClusterIPs",
        _ => return None,
    };
    Some(comment.to_owned())
}

#[test]
#[ignore = "needs root, nft and a kernel with nf_tables"]
fn kube_proxy_1_36_in_nftables_mode() {
    in_new_netns(|| {
        run("nft", &["-f", "-"], NFT);
        let addrs = [[10, 96, 77, 77], [10, 96, 0, 1], [10, 96, 42, 6], [10, 96, 9, 9], [10, 89, 0, 1], [10, 97, 0, 1]];
        let mut taken = BTreeSet::new();
        for hook in ["INPUT", "FORWARD", "OUTPUT"] {
            for dst in addrs.map(Ipv4Addr::from) {
                for port in [80, 81, 443, 6443, 30_080] {
                    let by_hand = taker(hook, dst, port);
                    let found = named(hook, dst, port);
                    let expected = (by_hand.iter().cloned().collect(), by_hand.is_none());
                    assert_eq!(found, expected, "{hook} {dst}:{port}");
                    taken.extend(by_hand);
                }
            }
        }
        assert_eq!(taken.len(), 3, "each of its rules takes something: {taken:?}");
    });
}

#[test]
#[ignore = "needs root and iptables-nft"]
fn kube_proxy_1_36_in_iptables_mode() {
    in_new_netns(|| {
        // Not each kernel has the module of the accounting match.
        let rules = IPTABLES.replace("-m nfacct --nfacct-name  ct_state_invalid_dropped_pkts ", "");
        let rules = rules.replace("-m nfacct --nfacct-name  localhost_nps_accepted_pkts ", "");
        run("iptables-nft-restore", &[], &rules);
        let empty = BTreeSet::from(["default/circ:http has no endpoints".to_owned()]);
        let none = (BTreeSet::new(), true);
        assert_eq!(named("OUTPUT", [10, 96, 77, 77].into(), 80), (empty.clone(), false));
        // tracer does not know the mark, so the packet may pass KUBE-FORWARD.
        assert_eq!(named("FORWARD", [10, 96, 77, 77].into(), 80), (empty, true));
        for hook in ["FORWARD", "OUTPUT"] {
            assert_eq!(named(hook, [10, 96, 77, 77].into(), 81), none, "{hook}");
            assert_eq!(named(hook, [10, 96, 0, 1].into(), 443), none, "{hook}");
        }
        assert_eq!(named("INPUT", [10, 96, 77, 77].into(), 80), none);
    });
}

/// The first rule drops the client's first packet and adds the client to its set: read afterwards, the set contains it.
#[test]
#[ignore = "needs root, nft and a kernel with nf_tables"]
fn a_set_that_the_dropped_packet_changed_excludes_no_rule() {
    const GREYLIST: &str = "table ip guard {
        set seen { type ipv4_addr; flags dynamic, timeout; size 100; elements = { 10.89.0.1 timeout 1h }; }
        chain in { type filter hook input priority 0;
            ip saddr != @seen add @seen { ip saddr timeout 1h } drop comment \"greylist\"
            limit rate over 1000/second drop comment \"limit\"
        }; }\n";
    in_new_netns(|| {
        run("nft", &["-f", "-"], GREYLIST);
        let both = ["greylist", "limit"].map(str::to_owned);
        assert_eq!(named("INPUT", [10, 89, 0, 1].into(), 80), (both.into(), true));
    });
}

/// The first chain looks as if it took the packet before the rule that does.
#[test]
#[ignore = "needs root, nft and a kernel with nf_tables"]
fn a_chain_that_only_seems_to_take_a_packet_does_not_hide_the_rule_that_does() {
    const DROPS: &str =
        "table inet b { chain in { type filter hook input priority 10; tcp dport 80 drop comment \"mine\"; }; }";
    let named_beside = |table: &str| {
        in_new_netns(|| {
            run("nft", &["-f", "-"], &format!("table inet a {{ {table}; }}\n{DROPS}\n"));
            named("INPUT", [10, 89, 0, 1].into(), 80)
        })
    };
    let chain = |rules: &str| format!("chain in {{ type filter hook input priority 0; {rules}; }}");
    let with = |more: &str, rules: &str| format!("{more}; {}", chain(rules));
    let trusted = "set trusted { type ipv4_addr; flags interval; elements = { 0.0.0.0/0 }; }";
    for table in [
        with("flags dormant", "policy drop"),
        with(trusted, "policy drop; ip saddr @trusted accept"),
        chain("tcp dport vmap { 0-65535 : accept }; drop comment \"others\""),
        chain("policy drop; tcp dport 1-1000 accept"),
    ] {
        assert_eq!(named_beside(&table), (BTreeSet::from(["mine".to_owned()]), false), "{table}");
    }
    // The reader does not compare names of links, which have 16 bytes in the key.
    let unknown = chain("iifname . tcp dport { \"eth0\" . 80 } accept; meta l4proto tcp drop comment \"others\"");
    assert_eq!(named_beside(&unknown).0, BTreeSet::from(["mine", "others"].map(str::to_owned)));
}
