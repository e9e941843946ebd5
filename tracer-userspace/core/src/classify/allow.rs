//! What lets a flow pass, by the commands of the software that made the rule: it drops what other commands add to its
//! chains when it loads its rules again.

use super::owner::Owner;
use tracer_model::event::{FirewallRule, Flow};
use tracer_model::shell;

/// Its command, where it has one for what this rule stopped at this hook.
pub(super) fn allow(owner: Owner, rule: &FirewallRule, hook: &str, flow: Flow) -> Option<String> {
    match owner.name {
        "ufw" => ufw(rule, hook, flow),
        "firewalld" => firewalld(rule, hook, flow),
        _ => None,
    }
}

/// ufw's chains that come after the first of the rules which it has commands for, or are made of them.
const AFTER_USER_RULES: [&str; 3] = ["user-", "reject-", "skip-to-policy-"];

/// To any address: a pod has another one when it starts again.
fn ufw(rule: &FirewallRule, hook: &str, flow: Flow) -> Option<String> {
    let chain = rule.chain.strip_prefix("ufw-").or_else(|| rule.chain.strip_prefix("ufw6-"));
    let comes_after = rule.policy || chain.is_some_and(|chain| AFTER_USER_RULES.iter().any(|it| chain.starts_with(it)));
    let (from, port) = (flow.src.ip(), flow.dst.port());
    let command = match hook {
        "INPUT" => format!("ufw prepend allow proto tcp from {from} to any port {port}"),
        "OUTPUT" => format!("ufw prepend allow out proto tcp from {from} to any port {port}"),
        "FORWARD" => format!("ufw route prepend allow proto tcp from {from} to any port {port}"),
        _ => return None,
    };
    comes_after.then_some(command)
}

/// A zone's own rules are about what comes to the node, and what it forwards takes a policy. The last chain of a zone is named
/// after it alone.
fn firewalld(rule: &FirewallRule, hook: &str, flow: Flow) -> Option<String> {
    let begins = if hook == "FORWARD" { ["filter_FWD_", "FWD_"] } else { ["filter_IN_", "IN_"] };
    let zone = begins.iter().find_map(|begin| rule.chain.strip_prefix(begin))?;
    if PARTS.iter().any(|part| zone.ends_with(part)) || zone.starts_with(POLICY) {
        return None;
    }
    if hook == "FORWARD" {
        return Some("tracer doctor --check base_policy".to_owned());
    }
    let family = if flow.dst.is_ipv6() { "ipv6" } else { "ipv4" };
    let (from, port, zone) = (flow.src.ip(), flow.dst.port(), shell::plain(zone, "ZONE"));
    let what = format!("rule family={family} source address={from} port port={port} protocol=tcp accept");
    Some(format!("firewall-cmd --permanent --zone={zone} --add-rich-rule='{what}' && firewall-cmd --reload"))
}

/// What a zone's chains before its last are called after it.
const PARTS: [&str; 5] = ["_pre", "_log", "_deny", "_allow", "_post"];

/// What stands before the name of a policy in its chains (`POLICY_CHAIN_PREFIX`, firewall/core/nftables.py): no zone has it.
const POLICY: &str = "policy_";

#[cfg(test)]
mod tests {
    use super::super::owner::by_chain;
    use super::*;
    use crate::testing::*;

    fn flow() -> Flow {
        let [src, dst] = ["10.201.0.2:40000", "10.201.0.1:10250"].map(|it| it.parse().expect("an address"));
        Flow { src, dst }
    }

    fn reported(owner: &str, chain: &str, policy: bool, hook: &str) -> Option<String> {
        let rule = FirewallRule { policy, ..rule(chain, RuleVerdict::Drop) };
        allow(by_chain(owner).expect("an owner"), &rule, hook, flow())
    }

    /// Each was run beside the real one: tests/firewalls_live.rs.
    #[test]
    fn each_hook_of_ufw_has_a_command() {
        let policy = |hook| reported("ufw-", hook, true, hook);
        assert_eq!(policy("INPUT").as_deref(), Some("ufw prepend allow proto tcp from 10.201.0.2 to any port 10250"));
        assert_eq!(
            policy("OUTPUT").as_deref(),
            Some("ufw prepend allow out proto tcp from 10.201.0.2 to any port 10250")
        );
        let forward = "ufw route prepend allow proto tcp from 10.201.0.2 to any port 10250";
        assert_eq!(policy("FORWARD").as_deref(), Some(forward));
        assert_eq!(policy("PREROUTING"), None);
    }

    #[test]
    fn what_comes_before_the_rules_of_a_user_is_not_changed_by_one() {
        let of = |chain| reported("ufw-", chain, false, "INPUT").is_some();
        assert_eq!((of("ufw-user-input"), of("ufw6-reject-input"), of("ufw-skip-to-policy-input")), (true, true, true));
        assert_eq!((of("ufw-not-local"), of("ufw-before-input"), of("cali-INPUT")), (false, false, false));
    }

    #[test]
    fn firewalld_takes_it_into_the_zone_that_stopped_it() {
        let of = |chain, hook| reported("IN_public", chain, false, hook).unwrap_or_default();
        assert_starts(&of("filter_IN_public", "INPUT"), "firewall-cmd --permanent --zone=public --add-rich-rule='");
        assert_starts(&of("IN_drop", "INPUT"), "firewall-cmd --permanent --zone=drop ");
        assert!(of("filter_IN_x$(id)", "INPUT").contains("--zone=ZONE "), "whoever writes rules names chains");
        assert_has(&of("filter_FWD_public", "FORWARD"), &["tracer doctor --check base_policy"]);
        assert_eq!(of("filter_IN_public_deny", "INPUT"), "", "a rule of the zone's own comes before");
        assert_eq!(of("filter_IN_policy_no-kubelet", "INPUT"), "", "a policy is no zone");
        assert_eq!(of("filter_FWD_policy_no-pods", "FORWARD"), "");
    }
}
