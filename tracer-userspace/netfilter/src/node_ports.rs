//! Finds NodePorts and external addresses of Services in the rules of kube-proxy. In its iptables mode they are in two chains of
//! `nat`, in its nftables mode in three maps of the table `kube-proxy`. ClusterIPs are among the addresses there, and not here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::firewall::ruleset::{Rule, Table, Then};
use super::firewall::{legacy, nft};
use super::{Named, NetfilterError, TCP};

/// The rules of these chains have the Service's name in their comments: of NodePorts only the name, of addresses also what they
/// are, such as `shop/cart:http external IP`.
const CHAINS: [&str; 2] = ["KUBE-NODEPORTS", "KUBE-SERVICES"];
const EXTERNAL: [&str; 2] = [" external IP", " loadbalancer IP"];

/// The first map has Services without endpoints, with the name in the element's comment. The second map leads to chains named
/// `external-<hash>-<namespace>/<name>/tcp/<port>`.
const MAPS: [&str; 2] = ["no-endpoint-nodeports", "service-nodeports"];
/// External addresses lead to such a chain, too, and ClusterIPs to one named `service-…`.
const ADDRESSES: &str = "service-ips";

/// What the nftables mode has in the calling thread's network namespace.
pub(super) fn of_nftables() -> Result<Named, NetfilterError> {
    nft::read_proxy_maps(MAPS, ADDRESSES).map(|tables| in_maps(&tables))
}

/// What the iptables mode has there with each backend: the legacy ip_tables, and iptables-nft.
pub(super) fn of_iptables() -> [Result<Named, NetfilterError>; 2] {
    [legacy::read_nat_chains(CHAINS), nft::read_nat_chains(CHAINS)].map(|tables| Ok(in_chains(&tables?)))
}

pub(crate) fn in_chains(tables: &[Table]) -> Named {
    let mut named = Named::new();
    for table in tables {
        let chains = |name| table.chains.iter().filter(move |chain| chain.name == name);
        let [ports, addresses] = CHAINS.map(|name| chains(name).flat_map(|chain| &chain.rules));
        named.extend(ports.filter_map(|rule| Some((node_port(table, tcp_port(rule)?), rule.comment.clone()))));
        named.extend(addresses.filter_map(external));
    }
    named
}

/// A NodePort in a table of one family.
fn node_port(table: &Table, port: u16) -> SocketAddr {
    let any = if table.family == "ip6" { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
    (any, port).into()
}

/// The Service of a rule for an external address.
fn external(rule: &Rule) -> Option<(SocketAddr, Option<String>)> {
    let comment = rule.comment.as_deref()?;
    let service = EXTERNAL.into_iter().find_map(|what| comment.strip_suffix(what))?;
    Some(((rule.when.dst?.addr, tcp_port(rule)?).into(), Some(service.to_owned())))
}

pub(crate) fn in_maps(tables: &[Table]) -> Named {
    let mut named = Named::new();
    for table in tables {
        let elements = |map| table.maps.get(map).into_iter().flatten();
        let is_external = |element: &&Rule| chain_of(element).is_some_and(|it| it.starts_with("external-"));
        for element in MAPS.into_iter().flat_map(elements).chain(elements(ADDRESSES).filter(is_external)) {
            let Some(port) = tcp_port(element) else { continue };
            let at = element.when.dst.map_or_else(|| node_port(table, port), |dst| (dst.addr, port).into());
            let known = named.entry(at).or_default();
            *known = service(element).or_else(|| known.take());
        }
    }
    named
}

fn tcp_port(rule: &Rule) -> Option<u16> {
    rule.when.dport.filter(|_| rule.when.protocol == Some(TCP))
}

fn service(element: &Rule) -> Option<String> {
    chain_of(element).and_then(service_of_chain).or_else(|| element.comment.clone())
}

fn chain_of(element: &Rule) -> Option<&str> {
    match &element.then {
        Then::Jump(chain) | Then::Goto(chain) => Some(chain),
        _ => None,
    }
}

/// `external-42NFTM6N-ns2/svc2/tcp/p80` → `ns2/svc2:p80`
fn service_of_chain(chain: &str) -> Option<String> {
    let mut parts = chain.split('/');
    let namespace = parts.next()?.splitn(3, '-').nth(2)?;
    let name = parts.next()?;
    match parts.nth(1) {
        Some(port) if !port.is_empty() => Some(format!("{namespace}/{name}:{port}")),
        _ => Some(format!("{namespace}/{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::firewall::ruleset::Chain;
    use super::*;
    use tracer_model::event::{Prefix, When};
    use tracer_testing::address;

    #[test]
    fn the_service_is_found_in_the_name_of_the_chain() {
        let check = |chain, service: Option<&str>| assert_eq!(service_of_chain(chain).as_deref(), service, "{chain}");
        check("external-42NFTM6N-ns2/svc2/tcp/p80", Some("ns2/svc2:p80"));
        check("service-ULMVA6XW-kube-system/kubernetes-dashboard/tcp/", Some("kube-system/kubernetes-dashboard"));
        check("local-ULMVA6XW-a-b-c/d/tcp/e", Some("a-b-c/d:e"));
        check("reject-chain", None);
        check("", None);
    }

    fn rule(protocol: Option<u8>, dport: Option<u16>, then: Then) -> Rule {
        let mut rule = Rule { then, comment: Some("default/web:http".into()), ..Rule::default() };
        (rule.when.protocol, rule.when.dport) = (protocol, dport);
        rule
    }

    fn at(addr: &str, rule: Rule) -> Rule {
        let dst = Some(Prefix { addr: address(addr), len: 32 });
        Rule { when: When { dst, ..rule.when }, ..rule }
    }

    fn named<const N: usize>(found: [(Option<&str>, u16, &str); N]) -> Named {
        let at = |addr: Option<&str>, port| (addr.map_or(Ipv4Addr::UNSPECIFIED.into(), address::<IpAddr>), port).into();
        found.map(|(addr, port, service)| (at(addr, port), Some(service.to_owned()))).into()
    }

    #[test]
    fn only_tcp_rules_with_a_port_are_node_ports() {
        let jump = || Then::Jump("KUBE-EXT-CDGGSHYLG3RE2FKL".into());
        let rules =
            [rule(Some(TCP), Some(30080), jump()), rule(Some(17), Some(30053), jump()), rule(Some(TCP), None, jump())];
        let chain = |name: &str| Chain { name: name.into(), base: None, rules: rules.clone().into() };
        let tables = [Table::for_tests(CHAINS.map(chain).into())];
        assert_eq!(in_chains(&tables), named([(None, 30080, "default/web:http")]));
    }

    #[test]
    fn a_rule_for_a_cluster_ip_is_no_external_address() {
        let of = |addr, protocol, what: &str| {
            let rule = at(addr, rule(Some(protocol), Some(80), Then::Jump("KUBE-EXT-CDGGSHYLG3RE2FKL".into())));
            Rule { comment: Some(format!("default/web:http {what}")), ..rule }
        };
        let rules = vec![
            of("10.96.0.1", TCP, "cluster IP"),
            of("192.0.2.1", TCP, "external IP"),
            of("192.0.2.2", TCP, "loadbalancer IP"),
            of("192.0.2.3", 17, "loadbalancer IP"),
        ];
        let tables = [Table::for_tests(vec![Chain { name: CHAINS[1].into(), base: None, rules }])];
        let web = "default/web:http";
        assert_eq!(in_chains(&tables), named([(Some("192.0.2.1"), 80, web), (Some("192.0.2.2"), 80, web)]));
        let mut table = Table::for_tests(vec![]);
        let element = |addr, chain: &str| at(addr, rule(Some(TCP), Some(80), Then::Goto(chain.into())));
        let [cluster, external] = ["service", "external"].map(|kind| format!("{kind}-SUSTUHLJ-shop/cart/tcp/p80"));
        table.maps.insert(ADDRESSES.into(), vec![element("10.96.0.1", &cluster), element("192.0.2.1", &external)]);
        assert_eq!(in_maps(&[table]), named([(Some("192.0.2.1"), 80, "shop/cart:p80")]));
    }

    #[test]
    fn the_service_is_named_by_the_chain_else_by_the_comment() {
        let mut table = Table::for_tests(vec![]);
        let external = "external-SUSTUHLJ-shop/cart/tcp/p80";
        table.maps.insert(MAPS[0].into(), vec![rule(Some(TCP), Some(30080), Then::Goto("reject-chain".into()))]);
        table.maps.insert(MAPS[1].into(), vec![rule(Some(TCP), Some(30081), Then::Goto(external.into()))]);
        table.maps.insert(ADDRESSES.into(), vec![rule(Some(TCP), Some(80), Then::Drop)]);
        assert_eq!(in_maps(&[table]), named([(None, 30080, "default/web:http"), (None, 30081, "shop/cart:p80")]));
    }
}
