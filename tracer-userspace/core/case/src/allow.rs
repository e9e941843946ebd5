//! Commands of ufw and firewalld that let a flow pass: both drop the rules of other commands when they reload.

use crate::owner::{FIREWALLD, Owner};
use tracer_model::event::{FirewallRule, Flow};
use tracer_model::shell;

/// The command of `owner` that allows this flow at this hook; `None` if it has none that comes before this rule.
pub(crate) fn allow_command(owner: Owner, rule: &FirewallRule, hook: &str, flow: Flow) -> Option<String> {
    match owner.name {
        "ufw" => ufw(rule, hook, flow),
        "firewalld" => firewalld(rule, hook, flow),
        _ => None,
    }
}

/// Chains of ufw that a packet reaches after the first user rule: `ufw prepend` adds a rule before those.
const AFTER_USER_RULES: [&str; 3] = ["user-", "reject-", "skip-to-policy-"];

/// The command allows any destination address: a restarted pod has another one.
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

/// The rules of a zone are for packets to the node; forwarded packets need a policy. The last chain has no suffix.
fn firewalld(rule: &FirewallRule, hook: &str, flow: Flow) -> Option<String> {
    let begins = if hook == "FORWARD" { ["filter_FWD_", "FWD_"] } else { ["filter_IN_", "IN_"] };
    let known = begins.iter().find_map(|begin| rule.chain.strip_prefix(begin));
    // Before 1.0 the chain of the hook rejects what the zone has not decided.
    let is_undecided = || hook == "INPUT" && rule.table == FIREWALLD.name && rule.chain == "filter_INPUT";
    let zone = known.or_else(|| is_undecided().then_some(ANY_ZONE))?;
    if SUFFIXES.iter().any(|suffix| zone.ends_with(suffix)) || zone.starts_with(POLICY) {
        return None;
    }
    if hook == "FORWARD" {
        return Some("tracer doctor --check base_policy".to_owned());
    }
    let family = if flow.dst.is_ipv6() { "ipv6" } else { "ipv4" };
    let (from, port, zone) = (flow.src.ip(), flow.dst.port(), shell::plain(zone, ANY_ZONE));
    let what = format!("rule family={family} source address={from} port port={port} protocol=tcp accept");
    // No --reload: it drops all that was opened without --permanent.
    let allow = format!("--zone={zone} --add-rich-rule='{what}'");
    Some(format!("firewall-cmd {allow} && firewall-cmd --permanent {allow}"))
}

/// Stands for a zone that is not known.
pub(crate) const ANY_ZONE: &str = "ZONE";

/// The command that shows the zones of firewalld, with their links and sources.
pub(crate) const SHOW_ZONES: &str = "firewall-cmd --get-active-zones";

/// Commands that show what firewalld enforces, where no command of its own can be named.
pub(crate) const SHOW_FIREWALLD: [&str; 2] = ["firewall-cmd --get-active-policies", "firewall-cmd --list-all-policies"];

/// Suffixes of the chains that come before the last one of a zone.
const SUFFIXES: [&str; 5] = ["_pre", "_log", "_deny", "_allow", "_post"];

/// Prefix of a policy's name in its chains (`POLICY_CHAIN_PREFIX`, firewall/core/nftables.py); no zone's name has it.
const POLICY: &str = "policy_";

#[cfg(test)]
mod tests {
    use super::super::owner::by_chain;
    use super::*;
    use tracer_core::testing::*;

    fn flow() -> Flow {
        let [src, dst] = ["10.201.0.2:40000", "10.201.0.1:10250"].map(address);
        Flow { src, dst }
    }

    fn command_for(owner: &str, chain: &str, policy: bool, hook: &str) -> Option<String> {
        let rule = FirewallRule { policy, ..rule(chain, RuleVerdict::Drop) };
        allow_command(by_chain(owner).expect("an owner"), &rule, hook, flow())
    }

    /// tests/firewalls_live.rs runs each command with the real ufw.
    #[test]
    fn each_hook_of_ufw_has_a_command() {
        let policy = |hook| command_for("ufw-", hook, true, hook);
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
    fn ufw_has_no_command_for_a_chain_before_the_user_rules() {
        let of = |chain| command_for("ufw-", chain, false, "INPUT").is_some();
        assert_eq!((of("ufw-user-input"), of("ufw6-reject-input"), of("ufw-skip-to-policy-input")), (true, true, true));
        assert_eq!((of("ufw-not-local"), of("ufw-before-input"), of("cali-INPUT")), (false, false, false));
    }

    #[test]
    fn firewalld_gets_a_rich_rule_in_the_zone_that_stopped_the_flow() {
        let of = |chain, hook| command_for("IN_public", chain, false, hook).unwrap_or_default();
        let public = of("filter_IN_public", "INPUT");
        assert_starts(&public, "firewall-cmd --zone=public --add-rich-rule='");
        assert_has(&public, &["accept' && firewall-cmd --permanent --zone=public --add-rich-rule='"]);
        assert_lacks(&public, &["--reload"]);
        assert_starts(&of("IN_drop", "INPUT"), "firewall-cmd --zone=drop ");
        assert!(
            of("filter_IN_x$(id)", "INPUT").contains("--zone=ZONE "),
            "whoever writes rules chooses the names of chains"
        );
        assert_has(&of("filter_FWD_public", "FORWARD"), &["tracer doctor --check base_policy"]);
        let undecided = FirewallRule { table: "firewalld".into(), ..rule("filter_INPUT", RuleVerdict::Reject) };
        let allow = allow_command(FIREWALLD, &undecided, "INPUT", flow()).unwrap_or_default();
        assert_starts(&allow, "firewall-cmd --zone=ZONE --add-rich-rule='");
        assert_eq!(of("filter_IN_public_deny", "INPUT"), "", "the deny rules of the zone come first");
        assert_eq!(of("filter_IN_policy_no-kubelet", "INPUT"), "", "a policy is no zone");
        assert_eq!(of("filter_FWD_policy_no-pods", "FORWARD"), "");
    }
}
