//! Base chains of netfilter that drop what no rule accepted, and the software that owns them.

use super::finding::{Finding, Fix, KEEP, Remediation, Unread};
use super::{Check, ip_forward};
use tracer_case::owner;
use tracer_model::event::Backend;
use tracer_model::plural::counted;
use tracer_model::shell;
use tracer_netfilter::{Survey, SurveyChain, SurveyTable};

pub(super) const CHECK: Check = Check {
    name: "base_policy",
    why: "a base chain that drops by default blocks traffic that no rule accepts. INPUT: the API server to the kubelet, pods to the node. FORWARD: pods to each other, other nodes to pods. OUTPUT: the kubelet's probes",
    expected: || "no base chain that drops, by its policy or its last rule, the packets that no rule accepted".into(),
    run: |view| Ok(judge(&view.firewall()?, ip_forward::uses_v6(view))),
};

/// `v6`: whether pods use IPv6, if known. Where they do not, hardened nodes drop all of it.
fn judge(survey: &Survey, v6: Option<bool>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut unused = 0;
    for table in survey.tables.iter().filter(|table| matches!(table.family, "ip" | "ip6" | "inet")) {
        let (is_v6, dropping) = (table.family == "ip6", table.chains.iter().filter(|chain| drops(chain)));
        match v6 {
            Some(false) if is_v6 => unused += dropping.count(),
            _ => found.extend(dropping.map(|chain| policy(table, chain, !is_v6 || v6.is_some()))),
        }
    }
    if found.is_empty() && survey.truncated {
        let reason = "there are too many rules to read all; of the base chains that were read, none drops by its policy or its last rule";
        let list = "nft list ruleset | grep policy; iptables-legacy -S | grep ^-P";
        let fix = Remediation::on_node("Read the policies by hand", list);
        found.push(CHECK.draft().unknown(Unread::new(reason, fix)));
    } else if found.is_empty() {
        let bases = survey.tables.iter().flat_map(|table| &table.chains).filter(|chain| chain.hook.is_some()).count();
        let which = if unused > 0 { ", none but those of IPv6, which no pod uses," } else { ", none" };
        let bases = counted(bases as u64, "base chain");
        found.push(CHECK.draft().ok(format!("{bases}{which} drops by its policy or its last rule")));
    }
    found
}

const fn drops(chain: &SurveyChain) -> bool {
    chain.hook.is_some() && (chain.drops || chain.last_drops.is_some())
}

/// `is_used`: the node's pods use this family.
fn policy(table: &SurveyTable, chain: &SurveyChain, is_used: bool) -> Finding {
    let hook = chain.hook.unwrap_or_default();
    let owner = owner_of(table);
    let name = owner.map_or("no known software".to_owned(), str::to_owned);
    let (how, dropped) = match chain.dropped.filter(|_| chain.drops) {
        _ if !chain.drops => ("last rule drops or rejects all", String::new()),
        Some(packets) => ("policy drop", format!(", {packets} packets dropped by it")),
        None => ("policy drop", String::new()),
    };
    let place = format!("{} {} {}", table.family, table.name, chain.name);
    let mut draft = CHECK
        .draft()
        .with("hook", hook)
        .with("family", table.family)
        .with("table", table.name.clone())
        .with("chain", chain.name.clone());
    if let Some(packets) = chain.dropped {
        draft = draft.with("packets", packets);
    }
    if let Some(owner) = owner {
        draft = draft.with("owner", owner);
    }
    // The backend's name, whatever the family.
    let backend = table.backend.iptables("ip").unwrap_or("nftables");
    if chain.ways_out == 0 {
        let observed =
            format!("{how} on {hook} ({backend} {place}) and no rule in it that accepts{dropped}; owner: {name}");
        if !is_used {
            let observed = format!("{observed}. It is not known whether pods use IPv6");
            return draft.warn(observed, list_rules(table, chain));
        }
        return draft.fail(observed, fix(table, chain, owner));
    }
    let observed = format!(
        "{how} on {hook} ({backend} {place}{dropped}), owner: {name}; {} rules in it accept packets or jump to other chains. tracer does not know whether they accept all traffic of the cluster",
        chain.ways_out
    );
    draft.warn(observed, fix(table, chain, owner))
}

/// Finds the owner by the table's name, else by a chain of the table that only one software creates. ufw and firewalld come
/// before Docker: Docker sets only FORWARD to drop, ufw and firewalld also other chains.
fn owner_of(table: &SurveyTable) -> Option<&'static str> {
    owner::by_table(&table.name).map(|owner| owner.name).or_else(|| {
        let has_chain_of =
            |name: &str| table.chains.iter().filter_map(|it| owner::by_chain(&it.name)).any(|it| it.name == name);
        ["ufw", "firewalld", "docker"].into_iter().find(|name| has_chain_of(name))
    })
}

/// A chain that accepts some packets may be right as it is. Its fix allows the traffic of the cluster, and does not turn the
/// firewall off.
fn fix(table: &SurveyTable, chain: &SurveyChain, owner: Option<&str>) -> Fix {
    let may_be_right = chain.ways_out > 0;
    match owner {
        Some("ufw") if may_be_right => Fix::lasting(allow(ufw_command(chain), "systemctl disable --now ufw")),
        Some("ufw") => Fix::new(
            Remediation::on_node("Turn ufw off", "ufw disable"),
            Remediation::on_node(KEEP, "systemctl disable --now ufw"),
        ),
        Some("firewalld") if table.name == owner::PANIC => {
            Fix::lasting(Remediation::on_node("End firewalld's panic mode", "firewall-cmd --panic-off"))
        }
        Some("firewalld") if may_be_right => Fix::lasting(firewalld_fix(chain)),
        Some("firewalld") => Fix::new(
            Remediation::on_node("Stop firewalld", "systemctl stop firewalld"),
            Remediation::on_node(KEEP, "systemctl disable firewalld"),
        ),
        _ if may_be_right => list_rules(table, chain),
        _ => set_accept(table, chain),
    }
}

fn ufw_command(chain: &SurveyChain) -> &'static str {
    match chain.hook {
        Some("FORWARD") => "ufw default allow routed",
        Some("OUTPUT") => "ufw allow out to NODE_CIDR && ufw allow out to POD_CIDR",
        _ => "ufw allow 10250/tcp && ufw allow from NODE_CIDR && ufw allow from POD_CIDR",
    }
}

/// A zone of sources accepts packets from these sources. Packets from other nodes to them need a policy, which takes
/// effect only when firewalld reloads.
fn firewalld_fix(chain: &SurveyChain) -> Remediation {
    const OFF: &str = "systemctl disable --now firewalld";
    if chain.hook != Some("FORWARD") {
        return allow(
            "firewall-cmd --zone=trusted --add-source=NODE_CIDR --add-source=POD_CIDR && firewall-cmd --permanent --zone=trusted --add-source=NODE_CIDR --add-source=POD_CIDR && firewall-cmd --add-port=10250/tcp && firewall-cmd --permanent --add-port=10250/tcp",
            OFF,
        );
    }
    allow(
        "firewall-cmd --permanent --zone=trusted --add-source=POD_CIDR && firewall-cmd --permanent --new-policy=to-pods && firewall-cmd --permanent --policy=to-pods --add-ingress-zone=ANY && firewall-cmd --permanent --policy=to-pods --add-egress-zone=trusted && firewall-cmd --permanent --policy=to-pods --set-target=ACCEPT && firewall-cmd --reload",
        OFF,
    )
    .reword(|text| format!("{text}. The reload closes all that was opened without --permanent: compare `firewall-cmd --list-all-zones` with `firewall-cmd --permanent --list-all-zones` first"))
}

/// What nodes need of each other beside the kubelet's port. Their connections to a Service of the API server come from
/// the node's own address, and so do the packets of an overlay.
const OF_NODES: &str =
    "The nodes reach tcp 6443 of the control plane and the overlay's port (udp 8472, 4789 or 51820) of each other";

/// Allows the traffic of the cluster; `off` is the command for a node that needs no firewall.
fn allow(command: &str, off: &str) -> Remediation {
    let nodes = match command.contains("NODE_CIDR") {
        true => format!(". {OF_NODES}: NODE_CIDR is their network"),
        false => String::new(),
    };
    let text = format!(
        "Let the traffic of the cluster pass{nodes}. Only if the node needs no firewall of its own: `{off}`. The node then accepts all that these rules block now"
    );
    Remediation::on_node(text, command)
}

/// The owner of these rules is not known: a person has to allow the traffic where the rules are kept.
fn list_rules(table: &SurveyTable, chain: &SurveyChain) -> Fix {
    let list = table.backend.list_chain(table.family, &table.name, &chain.name);
    let text = "See which packets the chain accepts. Allow the kubelet's port (tcp 10250) and the networks of pods and nodes where these rules are kept";
    Fix::lasting(Remediation::on_node(format!("{text}. {OF_NODES}"), list))
}

fn set_accept(table: &SurveyTable, chain: &SurveyChain) -> Fix {
    let persist =
        "set it where the rules are kept (/etc/nftables.conf, /etc/iptables/rules.v4, or the software that owns them)";
    if let Some(handle) = chain.last_drops.filter(|_| !chain.drops) {
        return Fix::new(Remediation::on_node("Delete the last rule", delete_rule(table, chain, handle)), persist);
    }
    let (name, chain) = (shell::table(&table.name), shell::chain(&chain.name));
    let accept = match table.backend.iptables(table.family) {
        Some(iptables) => format!("{iptables} -t {name} -P {chain} ACCEPT"),
        None => format!("nft 'chain {} {name} {chain} {{ policy accept; }}'", table.family),
    };
    Fix::new(Remediation::on_node("Let the chain accept what no rule decides", accept), persist)
}

/// `handle` is nft's handle of the rule, also under iptables-nft. Only in a table of iptables-legacy it is the rule's number.
fn delete_rule(table: &SurveyTable, chain: &SurveyChain, handle: u64) -> String {
    let (name, chain) = (shell::table(&table.name), shell::chain(&chain.name));
    match table.backend.iptables(table.family).filter(|_| table.backend == Backend::IptablesLegacy) {
        Some(iptables) => format!("{iptables} -t {name} -D {chain} {handle}"),
        None => format!("nft delete rule {} {name} {chain} handle {handle}", table.family),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::fix as fix_of;
    use super::judge as judge_for;
    use super::*;
    use crate::Status;
    use tracer_testing::assert_has;

    fn chain(name: &str, hook: Option<&'static str>, drops: bool, ways_out: usize) -> SurveyChain {
        SurveyChain { name: name.into(), hook, drops, dropped: Some(764), last_drops: None, ways_out }
    }

    fn judge(survey: &Survey) -> Vec<Finding> {
        judge_for(survey, Some(true))
    }

    fn survey(name: &str, chains: Vec<SurveyChain>) -> Survey {
        let table = SurveyTable { backend: Backend::IptablesNft, family: "ip", name: name.into(), chains };
        Survey { tables: vec![table], ..Survey::default() }
    }

    #[test]
    fn ufw_is_named_as_owner_with_the_packets_that_it_dropped() {
        let chains = vec![chain("INPUT", Some("INPUT"), true, 6), chain("ufw-user-input", None, false, 0)];
        let findings = judge(&survey("filter", chains));
        assert_eq!((findings.len(), findings[0].status), (1, Status::Warn));
        assert_has(&findings[0].observed, &["764 packets", "owner: ufw"]);
        assert!(fix_of(&findings[0]).starts_with("ufw allow 10250/tcp &&"), "{findings:?}");
        let text = &findings[0].remediation.as_ref().expect("a fix").text;
        assert!(text.contains("tcp 6443") && text.contains("NODE_CIDR is their network"), "{text}");
    }

    #[test]
    fn ufw_without_any_accepting_rule_is_turned_off() {
        let chains = vec![chain("INPUT", Some("INPUT"), true, 0), chain("ufw-user-input", None, false, 0)];
        assert_eq!(fix_of(&judge(&survey("filter", chains))[0]), "ufw disable");
    }

    #[test]
    fn a_policy_without_a_way_out_drops_everything() {
        let findings = judge(&survey("filter", vec![chain("FORWARD", Some("FORWARD"), true, 0)]));
        assert_eq!(findings[0].status, Status::Fail);
        assert_eq!(fix_of(&findings[0]), "iptables-nft -t filter -P FORWARD ACCEPT");
    }

    #[test]
    fn a_last_rule_that_drops_all_is_reported_as_a_policy_is() {
        let last = SurveyChain { last_drops: Some(9), ..chain("filter_INPUT", Some("INPUT"), false, 4) };
        let table =
            SurveyTable { backend: Backend::Nftables, family: "inet", name: "firewalld".into(), chains: vec![last] };
        let mut survey = Survey { tables: vec![table], ..Survey::default() };
        let findings = judge(&survey);
        let fix = |survey: &Survey| fix_of(&judge(survey)[0]).to_owned();
        assert_eq!(findings[0].status, Status::Warn);
        assert!(fix(&survey).starts_with("firewall-cmd --zone=trusted"), "{findings:?}");
        assert!(findings[0].observed.starts_with("last rule drops or rejects all on INPUT"), "{findings:?}");
        survey.tables[0].name = "mine".into();
        assert_eq!(fix(&survey), "nft -a list chain inet mine filter_INPUT");
        survey.tables[0].chains[0].ways_out = 0;
        assert_eq!(fix(&survey), "nft delete rule inet mine filter_INPUT handle 9");
    }

    /// tests/firewalls_live.rs checks these commands with the real ufw and firewalld.
    #[test]
    fn each_netfilter_hook_has_its_own_fix() {
        let fix_for = |hook, name, chains: &str| {
            let chains = vec![chain(hook, Some(hook), true, 6), chain(chains, None, false, 0)];
            fix_of(&judge(&survey(name, chains))[0]).to_owned()
        };
        assert_eq!(fix_for("FORWARD", "filter", "ufw-user-input"), "ufw default allow routed");
        let out = "ufw allow out to NODE_CIDR && ufw allow out to POD_CIDR";
        assert_eq!(fix_for("OUTPUT", "filter", "ufw-user-input"), out);
        let input = fix_for("INPUT", "filter", "INPUT_ZONES");
        assert!(input.starts_with("firewall-cmd --zone=trusted") && !input.contains("--reload"), "{input}");
        let forward = fix_for("FORWARD", "filter", "FORWARD_ZONES");
        assert!(forward.contains("--policy=to-pods --add-egress-zone=trusted"), "{forward}");
        let chains = vec![chain("FORWARD", Some("FORWARD"), true, 6), chain("FORWARD_ZONES", None, false, 0)];
        let text = judge(&survey("filter", chains)).remove(0).remediation.expect("a fix").text;
        assert!(text.contains("The reload closes all that was opened without --permanent"), "{text}");
    }

    #[test]
    fn the_panic_mode_of_firewalld_is_a_failure() {
        let chains = vec![chain("raw_prerouting", Some("PREROUTING"), true, 0)];
        let findings = judge(&survey("firewalld_policy_drop", chains));
        assert_eq!(findings[0].status, Status::Fail);
        assert_eq!(fix_of(&findings[0]), "firewall-cmd --panic-off");
    }

    #[test]
    fn a_policy_for_ipv6_is_a_failure_only_where_pods_use_it() {
        let mut survey = survey("filter", vec![chain("FORWARD", Some("FORWARD"), true, 0)]);
        survey.tables[0].family = "ip6";
        let found = |v6| judge_for(&survey, v6).remove(0);
        let statuses = [Some(true), None, Some(false)].map(|v6| found(v6).status);
        assert_eq!(statuses, [Status::Fail, Status::Warn, Status::Ok]);
        assert_eq!(fix_of(&found(None)), "nft -a list chain ip6 filter FORWARD", "a hardened node stays closed");
        assert!(found(Some(false)).observed.contains("none but those of IPv6"), "{}", found(Some(false)).observed);
    }

    #[test]
    fn policies_that_accept_are_ok() {
        let chains = vec![chain("OUTPUT", Some("OUTPUT"), false, 0), chain("INPUT", Some("INPUT"), false, 0)];
        let findings = judge(&survey("filter", chains));
        assert_eq!((findings.len(), findings[0].status), (1, Status::Ok));
        assert_eq!(judge(&Survey::default())[0].status, Status::Ok);
        let partial = Survey { truncated: true, ..Survey::default() };
        assert_eq!(judge(&partial)[0].status, Status::Unknown);
    }
}
