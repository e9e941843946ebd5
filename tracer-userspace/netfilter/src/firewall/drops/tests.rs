use super::super::add_tables;
use super::super::ruleset::{Base, Key, Test};
use super::*;
use tracer_model::event::path::{FlagTest, Packet};
use tracer_model::event::{Netns, TcpFlags};
use tracer_testing::address;

fn flow() -> Flow {
    Flow { src: address("10.88.0.1:0"), dst: address("10.88.0.2:8080") }
}

fn base(name: &str, hook: &'static str, rules: Vec<Rule>) -> Chain {
    Chain { name: name.into(), base: Some(Base { hook, ..Base::default() }), rules }
}

fn chain(name: &str, rules: Vec<Rule>) -> Chain {
    Chain { name: name.into(), base: None, rules }
}

fn rule(dport: Option<u16>, then: Then) -> Rule {
    Rule { when: When { dport, ..When::default() }, then, ..Rule::default() }
}

fn table(chains: Vec<Chain>) -> Table {
    Table::for_tests(chains)
}

fn flat(table: &Table) -> Firewall {
    let mut firewall = Firewall::empty(Netns(1));
    add_tables(std::slice::from_ref(table), flow(), &mut firewall);
    firewall
}

#[test]
fn a_rule_has_the_hooks_and_conditions_of_the_jumps_to_it() {
    let jump = |dport| rule(dport, Then::Jump("deny".into()));
    let once =
        flat(&table(vec![base("in", "INPUT", vec![jump(Some(1))]), chain("deny", vec![rule(None, Then::Drop)])]));
    let deny = &once.rules[0];
    assert_eq!((deny.hooks.join(","), deny.when.dport, deny.exact), ("INPUT".into(), Some(1), true));
    assert_eq!(deny.base.as_deref(), Some("in"));
    let twice = flat(&table(vec![
        base("in", "INPUT", vec![jump(Some(1))]),
        base("fwd", "FORWARD", vec![jump(Some(2))]),
        chain("deny", vec![rule(None, Then::Drop)]),
    ]));
    let deny = &twice.rules[0];
    assert_eq!((deny.hooks.join(","), deny.when.dport, deny.exact), ("INPUT,FORWARD".into(), None, false));
    assert_eq!(deny.base, None);
}

#[test]
fn conditions_that_do_not_fit_into_one_are_not_exact() {
    let but = |dport| {
        let mut rule = rule(None, Then::Drop);
        assert!(rule.when.take(When { dport: Some(dport), ..When::default() }, true));
        rule
    };
    let exact = |own: Rule, onward: Rule| {
        let onward = Rule { then: Then::Jump("deny".into()), ..onward };
        flat(&table(vec![base("in", "INPUT", vec![onward]), chain("deny", vec![own])])).rules[0].exact
    };
    assert!(exact(but(22), rule(None, Then::Drop)) && exact(but(22), but(22)));
    assert!(!exact(but(22), but(23)), "22 is let through as well");
}

#[test]
fn a_rule_after_a_return_is_not_exact() {
    let rules = vec![rule(None, Then::Drop), rule(Some(1), Then::Return), rule(None, Then::Drop)];
    let exact: Vec<bool> = flat(&table(vec![base("in", "INPUT", rules)])).rules.iter().map(|rule| rule.exact).collect();
    assert_eq!(exact, [true, false]);
}

/// `nfqueue` in raw PREROUTING, then a rule that drops the other packets: queued packets continue at the next base chain.
#[test]
fn a_rule_after_an_accepting_one_is_not_first() {
    let first = |before: Then| {
        let rules = vec![rule(Some(1), before), rule(None, Then::Drop)];
        flat(&table(vec![base("in", "INPUT", rules)])).rules[0].first
    };
    assert!(!first(Then::Accept) && first(Then::Nothing));
}

/// TPROXY drops what it cannot give to its proxy, and accepts the rest.
#[test]
fn a_rule_of_a_transparent_proxy_may_drop_and_may_accept() {
    let rules = vec![rule(Some(8080), Then::Proxy(15006)), rule(None, Then::Drop)];
    let firewall = flat(&table(vec![base("pre", "PREROUTING", rules)]));
    let noted: Vec<_> = firewall.rules.iter().map(|rule| (rule.proxy_port, rule.exact, rule.first)).collect();
    assert_eq!(noted, [(Some(15006), false, true), (None, true, false)]);
    let packet = Packet { hook: Some("PREROUTING"), tracked: None, flags: TcpFlags(0x02) };
    let takers = firewall.path.expect("a path").takers(&packet, |_| false);
    assert_eq!(
        (takers.rules.into_iter().collect::<Vec<_>>(), takers.take_all),
        (vec![0], false),
        "the second is not met"
    );
}

#[test]
fn an_unreachable_chain_drops_nothing_and_a_loop_ends() {
    let nobody = table(vec![chain("alone", vec![rule(None, Then::Drop)])]);
    assert!(flat(&nobody).rules.is_empty());
    let jump = |to: &str| rule(None, Then::Jump(to.into()));
    let loops =
        table(vec![base("in", "INPUT", vec![jump("a")]), chain("a", vec![jump("b")]), chain("b", vec![jump("a")])]);
    assert!(flat(&loops).rules.is_empty());
}

#[test]
fn elements_of_a_verdict_map_are_rules() {
    let mut table =
        table(vec![base("in", "INPUT", vec![rule(None, Then::Map("m".into(), vec![Key::DestinationPort]))])]);
    let elements = vec![rule(Some(1), Then::Goto("r".into())), rule(Some(8080), Then::Drop)];
    table.maps.insert("m".into(), elements);
    let rules = flat(&table).rules;
    assert_eq!(rules.iter().map(|rule| rule.when.dport).collect::<Vec<_>>(), [Some(8080)]);
}

#[test]
fn only_rules_that_can_match_are_kept_of_fifty_thousand() {
    let mut rules: Vec<Rule> = (0..50_000_u32).map(|n| rule(Some((n % 8000) as u16), Then::Drop)).collect();
    rules.push(rule(Some(8080), Then::Drop));
    let firewall = flat(&table(vec![base("in", "INPUT", rules)]));
    assert_eq!((firewall.rules.len(), firewall.truncated), (1, false));
    assert!(firewall.is_complete_for(flow()) && !firewall.is_complete_for(flow().reversed()));
}

/// kube-proxy's nftables mode (pkg/proxy/nftables): maps lead from Services to chains, and Services without endpoints have a map
/// of their own.
#[test]
fn ten_thousand_services_are_walked_completely() {
    const SERVICES: u16 = 10_000;
    let map = |name: &str| rule(None, Then::Map(name.into(), vec![Key::DestinationPort]));
    let jump = |to: &str| rule(None, Then::Jump(to.into()));
    let service = |n: u16| rule(Some(n), Then::Goto(format!("service-{n}")));
    let ends = |n: u16| (0..5).map(move |end| (format!("endpoint-{n}-{end}"), format!("__map-{n}")));
    let mut chains = vec![
        base("filter-input", "INPUT", vec![jump("service-endpoints-check")]),
        base("filter-output", "OUTPUT", vec![jump("service-endpoints-check")]),
        base("nat-prerouting", "PREROUTING", vec![jump("services")]),
        base("nat-output", "OUTPUT", vec![jump("services")]),
        chain("service-endpoints-check", vec![map("no-endpoint-services")]),
        chain("services", vec![map("service-ips"), map("service-nodeports")]),
    ];
    let mut maps = HashMap::from([
        ("service-ips".to_owned(), (0..SERVICES).map(service).collect()),
        ("service-nodeports".to_owned(), (0..SERVICES).map(service).collect()),
        ("no-endpoint-services".to_owned(), vec![rule(Some(8080), Then::Reject)]),
    ]);
    for n in 0..SERVICES {
        chains.push(chain(&format!("service-{n}"), vec![jump("mark"), map(&format!("__map-{n}"))]));
        let translates = || vec![jump("mark"), rule(None, Then::Accept)];
        chains.extend(ends(n).map(|(end, _)| chain(&end, translates())));
        maps.extend(
            ends(n).take(1).map(|(_, name)| (name, ends(n).map(|(end, _)| rule(None, Then::Goto(end))).collect())),
        );
    }
    let (steps, mut rules) = (Steps::new(), Rules::new(flow()));
    Table { maps, ..table(chains) }.flatten(&steps, &mut rules);
    let mut firewall = Firewall::empty(Netns(1));
    rules.write_to(&[], &mut firewall);
    let ports: Vec<_> = firewall.rules.iter().map(|rule| (rule.when.dport, rule.verdict)).collect();
    assert_eq!((ports, firewall.truncated), (vec![(Some(8080), RuleVerdict::Reject)], false));
    assert!(steps.0.get().is_some_and(|left| MAX_STEPS - left < MAX_STEPS / 4), "{steps:?}");
}

/// A pod may have a thousand rules that use a map of a hundred thousand elements.
#[test]
fn the_walk_of_a_map_that_many_rules_use_is_bounded() {
    let elements = |then: &Then| (0..100_000_u32).map(|n| rule(Some((n % 8000) as u16), then.clone())).collect();
    for then in [Then::Drop, Then::Jump("deny".into())] {
        let looks = vec![rule(None, Then::Map("m".into(), vec![Key::DestinationPort])); 1000];
        let chains = vec![base("in", "INPUT", looks), chain("deny", vec![rule(None, Then::Drop)])];
        let maps = HashMap::from([("m".to_owned(), elements(&then))]);
        let firewall = flat(&Table { maps, ..table(chains) });
        assert!(firewall.truncated && firewall.rules.is_empty(), "{then:?}");
    }
}

/// When the steps run out, a chain has the conditions of only some jumps. Such rules are not reported.
#[test]
fn no_rule_is_reported_with_too_many_conditions_when_the_steps_run_out() {
    let drops = |count| vec![rule(None, Then::Drop); count];
    let steps = Steps(Cell::new(Some(100)));
    let mut rules = Rules::new(flow());
    table(vec![base("in", "INPUT", drops(40))]).flatten(&steps, &mut rules);
    assert_eq!((rules.found.len(), rules.truncated), (20, true), "of 40 for each of three walks");
    table(vec![base("in", "INPUT", drops(1))]).flatten(&steps, &mut rules);
    assert_eq!(rules.found.len(), 20, "the ways of the next table are not known");
}

/// As `-m limit --limit 25/second -j RETURN`, and then `-j DROP`.
#[test]
fn a_limit_decides_what_is_left_for_the_rules_after_it() {
    let limited = |dport, then| Rule { rest: vec![Test::Limit(Limit::Rate)], ..rule(dport, then) };
    let drop = || rule(None, Then::Drop);
    let limits = |rules: Vec<Rule>, chain_rules: Vec<Rule>| -> Vec<Option<Limit>> {
        let found = flat(&table(vec![base("in", "INPUT", rules), chain("syn", chain_rules)]));
        found.rules.iter().map(|rule| rule.limit).collect()
    };
    let (some, to_chain) = (Some(Limit::Rate), || Then::Jump("syn".into()));
    assert_eq!(limits(vec![limited(None, Then::Drop), drop()], vec![]), [some, None], "its own");
    assert_eq!(limits(vec![limited(Some(8080), Then::Accept), drop()], vec![]), [some]);
    assert_eq!(limits(vec![limited(Some(22), Then::Accept), drop()], vec![]), [None], "another port's");
    assert_eq!(limits(vec![limited(None, to_chain())], vec![drop()]), [some], "that of the way to it");
    assert_eq!(limits(vec![limited(None, to_chain()), rule(None, to_chain())], vec![drop()]), [None]);
    assert_eq!(limits(vec![rule(None, to_chain()), drop()], vec![limited(None, Then::Accept)]), [some]);
    let of_ssh = limits(vec![rule(Some(22), to_chain()), drop()], vec![limited(None, Then::Accept)]);
    assert_eq!(of_ssh, [None], "the chain is another port's");
    let of_resets = FlagTest { mask: 0x17, value: 0x04, inverted: false };
    let flagged = Rule { rest: vec![Test::Flags(of_resets), Test::Limit(Limit::Rate)], ..rule(None, Then::Accept) };
    assert_eq!(limits(vec![flagged, drop()], vec![]), [None], "no SYN has these flags");
    let chain_rules = vec![limited(None, Then::Return), drop()];
    assert_eq!(limits(vec![rule(None, to_chain()), drop()], chain_rules), [some, None], "the chain is left");
    let mut policy = base("in", "INPUT", vec![limited(None, Then::Accept)]);
    policy.base.iter_mut().for_each(|base| base.drops = true);
    assert_eq!(flat(&table(vec![policy])).rules[0].limit, some);
    let mut unknown = limited(None, Then::Accept);
    unknown.rest.push(Test::Unknown);
    assert_eq!(limits(vec![unknown, drop()], vec![]), [None], "it may be for other packets");
}
