//! An overview of the node's firewall: tables and chains with their hooks and policies, without the rules.

use super::read_tables;
use super::ruleset::{Chain, Rule, Table, Then};
use crate::NetfilterError;
use tracer_model::event::{Backend, When};

#[derive(Debug, Default)]
pub struct Survey {
    pub tables: Vec<SurveyTable>,
    /// Whether some rules were not read.
    pub truncated: bool,
    /// What could not be read.
    pub problems: Vec<NetfilterError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyTable {
    pub backend: Backend,
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: &'static str,
    pub name: String,
    pub chains: Vec<SurveyChain>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyChain {
    pub name: String,
    /// The hook of a base chain: `INPUT`, `FORWARD`, …
    pub hook: Option<&'static str>,
    /// Whether its policy drops packets. It gets none where rules accept all TCP, UDP and ICMP.
    pub drops: bool,
    /// How many packets the policy dropped; absent if it does not count them.
    pub dropped: Option<u64>,
    /// The handle (legacy ip_tables: the number) of the last rule, if this rule drops or rejects all packets.
    pub last_drops: Option<u64>,
    /// How many rules accept, or lead to a chain that may accept.
    pub ways_out: usize,
}

/// Surveys the network namespace of the calling thread.
pub fn survey() -> Survey {
    let (tables, truncated, problems) = read_tables();
    Survey { tables: tables.into_iter().map(table).collect(), truncated, problems }
}

fn table(table: Table) -> SurveyTable {
    let chains = table.chains.iter().map(|it| chain(it, table.family)).collect();
    SurveyTable { backend: table.backend, family: table.family, name: table.name, chains }
}

fn chain(chain: &Chain, family: &str) -> SurveyChain {
    let leads_out =
        |then: &Then| matches!(then, Then::Accept | Then::Proxy(_) | Then::Jump(_) | Then::Goto(_) | Then::Map(..));
    let base = chain.base.as_ref();
    let is_open = accepts_all(chain, family);
    SurveyChain {
        name: chain.name.clone(),
        hook: base.map(|base| base.hook),
        drops: !is_open && base.is_some_and(|base| base.drops),
        dropped: base.and_then(|base| base.packets),
        last_drops: chain.rules.last().filter(|rule| !is_open && takes_all(rule, family)).and_then(|rule| rule.handle),
        ways_out: chain.rules.iter().filter(|rule| leads_out(&rule.then)).count(),
    }
}

/// Whether rules accept all packets of TCP, UDP and ICMP, as the nodes of GKE have it behind a policy that drops.
fn accepts_all(chain: &Chain, family: &str) -> bool {
    let accepts = |wanted: u8| {
        chain.rules.iter().any(|rule| {
            let (v6, protocol) = (rule.when.v6.filter(|_| family != "inet"), rule.when.protocol);
            let is_plain = rule.exact() && rule.when == When { v6, protocol, ..When::default() };
            rule.then == Then::Accept && is_plain && protocol.is_none_or(|it| it == wanted)
        })
    };
    let icmp: &[u8] = match family {
        "ip" => &[1],
        "ip6" => &[58],
        _ => &[1, 58],
    };
    [6, 17].iter().chain(icmp).all(|protocol| accepts(*protocol))
}

/// Whether the rule drops or rejects each packet. A condition on the family counts only in a table of both families.
fn takes_all(rule: &Rule, family: &str) -> bool {
    let v6 = rule.when.v6.filter(|_| family != "inet");
    matches!(rule.then, Then::Drop | Then::Reject) && rule.exact() && rule.when == When { v6, ..When::default() }
}

#[cfg(test)]
mod tests {
    use super::super::ruleset::Base;
    use super::*;

    #[test]
    fn a_policy_gets_no_packet_where_rules_accept_each_protocol() {
        let drops = |protocols: &[Option<u8>], family| {
            let accept = |protocol: &Option<u8>| Rule {
                // As in the rules of iptables.
                when: When {
                    v6: (family != "inet").then_some(family == "ip6"),
                    protocol: *protocol,
                    ..When::default()
                },
                then: Then::Accept,
                ..Rule::default()
            };
            let base = Some(Base { hook: "INPUT", drops: true, ..Base::default() });
            chain(&Chain { base, rules: protocols.iter().map(accept).collect(), ..Chain::default() }, family).drops
        };
        let [tcp, udp, icmp, icmp6] = [6, 17, 1, 58].map(Some);
        assert!(!drops(&[tcp, udp, icmp], "ip") && !drops(&[None], "ip") && !drops(&[tcp, udp, icmp6], "ip6"));
        assert!(drops(&[tcp, udp], "ip") && drops(&[tcp, udp, icmp], "ip6") && drops(&[tcp, udp, icmp], "inet"));
    }
}
