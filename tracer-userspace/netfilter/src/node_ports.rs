//! Finds NodePorts in the rules of kube-proxy. In its iptables mode they are in the chain `KUBE-NODEPORTS` of `nat`, in its
//! nftables mode in two maps of the table `kube-proxy`.

use super::firewall::ruleset::{Rule, Table, Then};
use super::firewall::{legacy, nft};
use super::{Named, NetfilterError, TCP};

/// The rules of this chain have the Service's name in their comments.
const CHAIN: &str = "KUBE-NODEPORTS";

/// The first map has Services without endpoints, with the name in the element's comment. The second map leads to chains named
/// `external-<hash>-<namespace>/<name>/tcp/<port>`.
const MAPS: [&str; 2] = ["no-endpoint-nodeports", "service-nodeports"];

/// The NodePorts of the nftables mode in the calling thread's network namespace.
pub(super) fn of_nftables() -> Result<Named, NetfilterError> {
    nft::read_proxy_maps(MAPS).map(|tables| in_maps(&tables))
}

/// The NodePorts of the iptables mode with iptables-nft.
pub(super) fn of_iptables_nft() -> Result<Named, NetfilterError> {
    nft::read_nat_chain(CHAIN).map(|tables| in_chain(&tables))
}

/// The NodePorts of the iptables mode with the legacy ip_tables.
pub(super) fn of_iptables_legacy() -> Result<Named, NetfilterError> {
    legacy::read_nat_chain(CHAIN).map(|tables| in_chain(&tables))
}

pub(crate) fn in_chain(tables: &[Table]) -> Named {
    let chains = tables.iter().flat_map(|table| &table.chains).filter(|chain| chain.name == CHAIN);
    chains.flat_map(|chain| &chain.rules).filter_map(|rule| Some((tcp_port(rule)?, rule.comment.clone()))).collect()
}

pub(crate) fn in_maps(tables: &[Table]) -> Named {
    let mut ports = Named::new();
    let maps = tables.iter().flat_map(|table| MAPS.into_iter().filter_map(|map| table.maps.get(map)));
    for element in maps.flatten() {
        let Some(port) = tcp_port(element) else { continue };
        let known = ports.entry(port).or_default();
        if let Some(service) = service(element) {
            *known = Some(service);
        }
    }
    ports
}

fn tcp_port(rule: &Rule) -> Option<u16> {
    rule.when.dport.filter(|_| rule.when.protocol == Some(TCP))
}

fn service(element: &Rule) -> Option<String> {
    let chain = match &element.then {
        Then::Jump(chain) | Then::Goto(chain) => service_of_chain(chain),
        _ => None,
    };
    chain.or_else(|| element.comment.clone())
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
    use super::*;

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

    #[test]
    fn only_tcp_rules_with_a_port_are_node_ports() {
        let jump = || Then::Jump("KUBE-EXT-CDGGSHYLG3RE2FKL".into());
        let rules =
            [rule(Some(TCP), Some(30080), jump()), rule(Some(17), Some(30053), jump()), rule(Some(TCP), None, jump())];
        let chain = |name: &str| super::super::firewall::ruleset::Chain {
            name: name.into(),
            base: None,
            rules: rules.clone().into(),
        };
        let tables = [Table::for_tests(vec![chain(CHAIN), chain("KUBE-SERVICES")])];
        assert_eq!(in_chain(&tables), Named::from([(30080, Some("default/web:http".to_owned()))]));
    }

    #[test]
    fn the_service_is_named_by_the_chain_else_by_the_comment() {
        let mut table = Table::for_tests(vec![]);
        let external = "external-SUSTUHLJ-shop/cart/tcp/p80";
        table.maps.insert(MAPS[0].into(), vec![rule(Some(TCP), Some(30080), Then::Goto("reject-chain".into()))]);
        table.maps.insert(MAPS[1].into(), vec![rule(Some(TCP), Some(30081), Then::Goto(external.into()))]);
        table.maps.insert("service-ips".into(), vec![rule(Some(TCP), Some(80), Then::Drop)]);
        let named = [(30080, Some("default/web:http".to_owned())), (30081, Some("shop/cart:p80".to_owned()))];
        assert_eq!(in_maps(&[table]), Named::from(named));
    }
}
