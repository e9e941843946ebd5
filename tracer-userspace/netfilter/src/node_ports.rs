//! NodePorts out of the rules of kube-proxy: the chain `KUBE-NODEPORTS` of `nat` in its iptables mode, two maps of the table
//! `kube-proxy` in its nftables mode.

use super::firewall::ruleset::{Rule, Table, Then};
use super::firewall::{legacy, nft};
use super::{Named, NetfilterError, TCP};

/// The chain. Its rules have the Service's name in their comments.
const CHAIN: &str = "KUBE-NODEPORTS";

/// A Service without endpoints is in the first, its name in the element's comment. The second leads to
/// `external-<hash>-<namespace>/<name>/tcp/<port>`.
const MAPS: [&str; 2] = ["no-endpoint-nodeports", "service-nodeports"];

/// Those of the nftables mode, in the namespace of the calling thread.
pub(super) fn of_nftables() -> Result<Named, NetfilterError> {
    nft::read_proxy_maps(MAPS).map(|tables| in_maps(&tables))
}

/// Those of iptables that runs on nf_tables.
pub(super) fn of_iptables_nft() -> Result<Named, NetfilterError> {
    nft::read_nat_chain(CHAIN).map(|tables| in_chain(&tables))
}

/// Those of the old ip_tables.
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
    fn chains_name_their_service() {
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
    fn only_a_tcp_port_is_a_node_port() {
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
    fn a_chain_or_the_comment_names_the_service() {
        let mut table = Table::for_tests(vec![]);
        let external = "external-SUSTUHLJ-shop/cart/tcp/p80";
        table.maps.insert(MAPS[0].into(), vec![rule(Some(TCP), Some(30080), Then::Goto("reject-chain".into()))]);
        table.maps.insert(MAPS[1].into(), vec![rule(Some(TCP), Some(30081), Then::Goto(external.into()))]);
        table.maps.insert("service-ips".into(), vec![rule(Some(TCP), Some(80), Then::Drop)]);
        let named = [(30080, Some("default/web:http".to_owned())), (30081, Some("shop/cart:p80".to_owned()))];
        assert_eq!(in_maps(&[table]), Named::from(named));
    }
}
