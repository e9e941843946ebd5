//! Loads rulesets of kube-proxy 1.36 into a network namespace of this kernel. Compares tracer's answer with a simple evaluation
//! of what `nft -j` lists.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use super::*;
use tracer_model::event::path::Packet;
use tracer_model::event::{TcpFlags, Tracked};

const NFT: &str = include_str!("../../../testdata/kube-proxy-1.36.nft");
const IPTABLES: &str = include_str!("../../../testdata/kube-proxy-1.36.iptables");

fn run(program: &str, args: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("its input");
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "{program} {args:?}: {}", output.status);
    String::from_utf8(output.stdout).expect("text")
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

/// The output of `nft -j list ruleset`, evaluated as a person would by hand.
struct Listed {
    rules: HashMap<String, Vec<Value>>,
    elements: HashMap<String, Vec<Value>>,
    /// Hook, priority and name of base chains that filter.
    bases: Vec<(String, i64, String)>,
}

impl Listed {
    fn read() -> Self {
        let all: Value = serde_json::from_str(&run("nft", &["-j", "list", "ruleset"], "")).expect("JSON");
        let mut listed = Self { rules: HashMap::new(), elements: HashMap::new(), bases: Vec::new() };
        let text = |value: &Value| value.as_str().expect("a name").to_owned();
        for item in all["nftables"].as_array().expect("a list") {
            if let Some(rule) = item.get("rule") {
                listed.rules.entry(text(&rule["chain"])).or_default().push(rule.clone());
            } else if let Some(set) = item.get("set").or_else(|| item.get("map")) {
                let elements = set["elem"].as_array().cloned().unwrap_or_default();
                listed.elements.insert(format!("@{}", text(&set["name"])), elements);
            } else if let Some(chain) = item.get("chain").filter(|chain| chain["type"] == "filter") {
                let priority = chain["prio"].as_i64().expect("a number");
                listed.bases.push((text(&chain["hook"]), priority, text(&chain["name"])));
            }
        }
        listed.bases.sort_by_key(|(_, priority, _)| *priority);
        listed
    }

    /// The comment of the rule or element that drops or rejects a SYN.
    fn taker(&self, hook: &str, dst: Ipv4Addr, port: u16) -> Option<String> {
        let here = self.bases.iter().filter(|(of, ..)| of.eq_ignore_ascii_case(hook));
        here.into_iter().find_map(|(.., chain)| self.chain(chain, dst, port))
    }

    fn chain(&self, name: &str, dst: Ipv4Addr, port: u16) -> Option<String> {
        self.rules.get(name).into_iter().flatten().find_map(|rule| {
            let comment = || rule["comment"].as_str().map_or_else(|| "none".to_owned(), str::to_owned);
            for part in rule["expr"].as_array().expect("expressions") {
                if let Some(test) = part.get("match") {
                    if !self.holds(test, dst, port) {
                        return None;
                    }
                } else if let Some(jump) = part.get("jump") {
                    return self.chain(jump["target"].as_str()?, dst, port);
                } else if let Some(map) = part.get("vmap") {
                    let key = value(&map["key"], dst, port);
                    let all = &self.elements[map["data"].as_str().expect("a map with a name")];
                    let element = all.iter().find(|it| plain(&it[0]) == key)?;
                    let comment = element[0]["elem"]["comment"].as_str()?;
                    assert_eq!(element[1]["goto"]["target"], "reject-chain");
                    return Some(format!("{comment} has no endpoints"));
                } else if part.get("reject").is_some() || part.get("drop").is_some() {
                    return Some(comment());
                }
            }
            None
        })
    }

    fn holds(&self, test: &Value, dst: Ipv4Addr, port: u16) -> bool {
        let (left, right) = (value(&test["left"], dst, port), &test["right"]);
        if let Some(set) = right.as_str().and_then(|name| self.elements.get(name)) {
            return set.iter().any(|it| plain(it) == left);
        }
        if let Some(prefix) = right.get("prefix") {
            let addr: Ipv4Addr = prefix["addr"].as_str().and_then(|it| it.parse().ok()).expect("an address");
            let shift = 32 - prefix["len"].as_u64().expect("a length");
            return addr.to_bits() >> shift == dst.to_bits() >> shift;
        }
        // The conntrack state of a SYN is `new`.
        assert_eq!((test["left"]["ct"]["key"].as_str(), right.as_str()), (Some("state"), Some("new")));
        true
    }
}

/// The value of an expression for a packet.
fn value(of: &Value, dst: Ipv4Addr, port: u16) -> Value {
    if let Some(parts) = of.get("concat").and_then(Value::as_array) {
        return parts.iter().map(|part| value(part, dst, port)).collect();
    }
    match (of["payload"]["field"].as_str(), of["meta"]["key"].as_str()) {
        (Some("daddr"), _) => dst.to_string().into(),
        (Some("dport"), _) => port.into(),
        (_, Some("l4proto")) => "tcp".into(),
        _ => Value::Null,
    }
}

/// The key of an element, without its counter or comment.
fn plain(element: &Value) -> Value {
    let key = element.get("elem").map_or(element, |it| &it["val"]);
    key.get("concat").unwrap_or(key).clone()
}

#[test]
#[ignore = "needs root, nft and a kernel with nf_tables"]
fn kube_proxy_1_36_in_nftables_mode() {
    in_new_netns(|| {
        run("nft", &["-f", "-"], NFT);
        let listed = Listed::read();
        let addrs = [[10, 96, 77, 77], [10, 96, 0, 1], [10, 96, 42, 6], [10, 96, 9, 9], [10, 89, 0, 1], [10, 97, 0, 1]];
        let mut taken = BTreeSet::new();
        for hook in ["INPUT", "FORWARD", "OUTPUT"] {
            for dst in addrs.map(Ipv4Addr::from) {
                for port in [80, 81, 443, 6443, 30_080] {
                    let by_hand = listed.taker(hook, dst, port);
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
