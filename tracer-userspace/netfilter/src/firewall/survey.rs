//! An overview of the node's firewall: tables and chains with their hooks and policies, without the rules.

use super::read_tables;
use super::ruleset::{Chain, Rule, Table, Then};
use crate::NetfilterError;
use tracer_model::event::{Backend, When};

/// All tables of a namespace.
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
    /// Whether its policy drops.
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
    SurveyChain {
        name: chain.name.clone(),
        hook: base.map(|base| base.hook),
        drops: base.is_some_and(|base| base.drops),
        dropped: base.and_then(|base| base.packets),
        last_drops: chain.rules.last().filter(|rule| takes_all(rule, family)).and_then(|rule| rule.handle),
        ways_out: chain.rules.iter().filter(|rule| leads_out(&rule.then)).count(),
    }
}

/// Whether the rule drops or rejects each packet. A condition on the family counts only in a table of both families.
fn takes_all(rule: &Rule, family: &str) -> bool {
    let v6 = rule.when.v6.filter(|_| family != "inet");
    matches!(rule.then, Then::Drop | Then::Reject) && rule.exact() && rule.when == When { v6, ..When::default() }
}
