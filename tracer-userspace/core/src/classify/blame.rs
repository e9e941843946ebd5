//! Which rule dropped a packet: those of the namespace that fit the hook, the backend, the flow and
//! the verdict. One: that was it. Several: they are candidates.

use serde_json::json;

use super::Case;
use super::evidence::{evidence, netfilter_hook, plain};
use super::owner::{self, Owner, owner_of};
use super::stopped::Blame;
use tracer_attempts::correlate::firewalls::Reading;
use tracer_model::event::path::{Packet, Takers};
use tracer_model::event::{Backend, FirewallRule, PacketDrop, RuleVerdict, Tracked};
use tracer_model::record::Evidence;
use tracer_model::shell;

const NAMED: usize = 3;
/// A reading older than the drop by more than this says nothing: rules change, and numbers of namespaces are used again.
const STALE_NS: u64 = 1_000_000_000;

/// To follow a sentence, where all was read and no rule can have done it.
const NO_RULE_FITS: &str = ": no rule that was read there fits; connection tracking, IPVS, a program or module at a netfilter hook, or a rule that is gone did it";

/// The rules that can have dropped this packet; none if nothing was read.
pub(super) fn blame<'a>(case: &Case<'a>, time: u64, drop: &PacketDrop, verdict: RuleVerdict) -> Option<Blame<'a>> {
    let reading = case.node.firewalls.reading(drop.netns?)?;
    (reading.at.saturating_add(STALE_NS) >= time).then_some(())?;
    let all = reading.firewall.rules.iter().enumerate();
    let takers = takers(case, reading, (time, drop));
    let reached = match &takers {
        Some(takers) => {
            let taker = |at: usize, rule: &FirewallRule| {
                takers.rules.contains(&at) && rule.verdict == verdict && backend_fits(case, rule, drop)
            };
            all.filter(|(at, rule)| taker(*at, rule)).collect()
        }
        None => {
            let fitting = all.filter(|(at, rule)| fits(case, rule, drop, verdict) && !reading.took_none(*at, time));
            reached(fitting.collect())
        }
    };
    let take_all = takers.is_some_and(|takers| takers.take_all);
    let complete = reading.firewall.is_complete_for(drop.flow) && reading.covers(time);
    let took = |(at, rule): &Candidate<'_>| took_it(reading, *at, rule, take_all, (time, drop));
    let by_rule = !reached.is_empty() && (is_freed_in_chain(drop) || reached.iter().any(took));
    let rules = reached.into_iter().map(|(_, rule)| rule).collect();
    Some(Blame { rules, complete, by_rule, take_all, reading })
}

/// The rules that the packet can have come to and met, where what its flow comes to was read and no translation changed its header.
fn takers(case: &Case<'_>, reading: &Reading, (time, drop): (u64, &PacketDrop)) -> Option<Takers> {
    let own = case.attempt.flow;
    let path = reading.firewall.path.as_ref().filter(|path| path.is_of(drop.flow))?;
    let packet = Packet { hook: netfilter_hook(drop), tracked: drop.tracked, flags: drop.flags };
    (drop.flow == own || drop.flow == own.reversed())
        .then(|| path.takers(&packet, |rule| reading.took_none(rule, time)))
}

/// A rule with its place in the reading.
type Candidate<'a> = (usize, &'a FirewallRule);

/// `NF_IP_PRI_CONNTRACK`, linux/netfilter_ipv4.h; the same for IPv6.
const CONNTRACK_PRIORITY: i32 = -200;

/// `nf_hook_slow` also frees what connection tracking and IPVS drop. It was this rule if that counted the packet, or if it takes
/// every packet that comes to it; and if connection tracking, where that comes before it, cannot have lacked room.
fn took_it(
    reading: &Reading,
    at: usize,
    rule: &FirewallRule,
    take_all: bool,
    (time, drop): (u64, &PacketDrop),
) -> bool {
    let takes_all = (rule.exact || rule.policy || take_all) && rule.packets != Some(0);
    let is_before_tracking = || rule.priority.is_some_and(|priority| priority < CONNTRACK_PRIORITY);
    let can_come_to_it = || is_before_tracking() || !may_lack_entry(drop) || !reading.lacked_room(time);
    (takes_all || reading.took_some(at, time)) && can_come_to_it()
}

/// Connection tracking gives an entry to what comes to these hooks, or drops it (`nf_conntrack_in`); only what it finds invalid
/// goes on without one.
pub(super) fn may_lack_entry(drop: &PacketDrop) -> bool {
    drop.tracked.is_none_or(|it| it == Tracked::No)
        && matches!(netfilter_hook(drop), None | Some("PREROUTING" | "OUTPUT"))
}

fn fits(case: &Case<'_>, rule: &FirewallRule, drop: &PacketDrop, verdict: RuleVerdict) -> bool {
    let hook = netfilter_hook(drop);
    rule.verdict == verdict
        && hook.is_none_or(|hook| rule.hooks.iter().any(|it| it == hook))
        && backend_fits(case, rule, drop)
        && rule.may_match(drop.flow)
        && !(rule.when.not.syn && drop.flags.is_syn())
        && (!rule.when.invalid || drop.tracked.is_none_or(|it| it == Tracked::No))
        && (!rule.when.new || (drop.flags.is_syn() && drop.tracked.is_none_or(|it| it == Tracked::Yes)))
}

/// From 6.7 on (`nft_do_chain`: `NF_DROP_REASON`) a rule of nftables frees the packet inside its chain; what
/// `nf_hook_slow` frees there is another's, or a policy's. Before, all is freed in `nf_hook_slow`.
fn backend_fits(case: &Case<'_>, rule: &FirewallRule, drop: &PacketDrop) -> bool {
    let legacy = rule.backend == Backend::IptablesLegacy;
    match drop.location.as_deref().map(plain) {
        _ if is_freed_in_chain(drop) => !legacy,
        Some("nf_hook_slow") if frees_in_chain(case) => legacy || rule.policy,
        _ => true,
    }
}

fn is_freed_in_chain(drop: &PacketDrop) -> bool {
    drop.location.as_deref().map(plain) == Some("nft_do_chain")
}

fn frees_in_chain(case: &Case<'_>) -> bool {
    let release = case.node.start.as_ref().map_or("", |start| start.kernel.as_str());
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

/// Without those that come after a rule that every such packet ends at.
fn reached(mut reached: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    if reached.iter().any(|(_, rule)| owner::is_endpoints_check(rule)) {
        reached.retain(|(_, rule)| !owner::is_cluster_ips_check(rule));
    }
    let ends: Vec<&FirewallRule> = reached.iter().map(|(_, rule)| *rule).filter(|rule| rule.exact).collect();
    for end in ends {
        let mut after = false;
        reached.retain(|(_, rule)| {
            let never_met = comes_later(end, rule) || (after && same_base(end, rule));
            after |= std::ptr::eq(*rule, end);
            !never_met
        });
    }
    reached
}

fn same_base(left: &FirewallRule, right: &FirewallRule) -> bool {
    let place = |rule: &FirewallRule| (rule.backend, rule.base.clone());
    left.base.is_some() && place(left) == place(right) && left.table == right.table && left.family == right.family
}

/// The base chain of `end` comes first in the same hook, and nothing there let the packet go on to that of `rule`. Chains of
/// `INGRESS` and `EGRESS` may be other devices', and `BRIDGE` is several hooks.
fn comes_later(end: &FirewallRule, rule: &FirewallRule) -> bool {
    let is_one = |hook: &str| !matches!(hook, "INGRESS" | "EGRESS" | "BRIDGE");
    let together = end.hooks.iter().any(|hook| is_one(hook) && rule.hooks.contains(hook));
    end.first && together && end.priority.zip(rule.priority).is_some_and(|(end, rule)| end < rule)
}

impl Blame<'_> {
    /// The packet was answered, as only a rule that rejects does.
    pub(super) fn answered(self) -> Self {
        Self { by_rule: !self.rules.is_empty(), ..self }
    }

    /// It can only have been this one.
    pub(super) fn certain(&self) -> Option<&FirewallRule> {
        match self.rules.as_slice() {
            [only] if self.complete && self.by_rule => Some(only),
            _ => None,
        }
    }

    /// The same, and it takes every such packet.
    pub(super) fn certainly_takes(&self) -> bool {
        self.certain().is_some_and(|rule| rule.exact || self.take_all)
    }

    /// All candidates are like that; some that were not read may be missing.
    pub(super) fn all_read(&self, like: impl Fn(&FirewallRule) -> bool) -> bool {
        !self.rules.is_empty() && self.rules.iter().all(|rule| like(rule))
    }

    /// A packet that has no entry when it comes to one of them is one that connection tracking found invalid: each comes after it.
    pub(super) fn come_after_tracking(&self) -> bool {
        let iptables = |rule: &FirewallRule| rule.backend != Backend::Nftables && rule.table != "raw";
        let after = |rule: &FirewallRule| rule.priority.map_or(iptables(rule), |at| at > CONNTRACK_PRIORITY);
        self.rules.iter().all(|rule| after(rule))
    }

    /// All was read, and nothing of it can have done it.
    pub(super) fn fits_no_rule(&self) -> bool {
        self.complete && self.rules.is_empty()
    }

    /// All candidates are like that, and none is missing.
    pub(super) fn all(&self, like: impl Fn(&FirewallRule) -> bool) -> bool {
        self.complete && self.all_read(like)
    }

    /// All of them check the way back, as rp_filter does.
    pub(super) fn is_reverse_path(&self) -> bool {
        self.all(|rule| rule.when.rpf)
    }

    /// Who made the first of them.
    pub(super) fn owner(&self) -> Option<Owner> {
        self.rules.first().and_then(|rule| self.owner_of(rule))
    }

    pub(super) fn owner_of(&self, rule: &FirewallRule) -> Option<Owner> {
        owner_of(rule, &self.reading.firewall.rules)
    }

    /// The rule or the candidates in words, to follow a sentence.
    pub(super) fn words(&self) -> String {
        let named = self.named();
        let more = if self.complete { "" } else { " or one that was not read" };
        match (self.rules.len(), self.certain()) {
            (0, _) if self.complete => NO_RULE_FITS.to_owned(),
            (0, _) => String::new(),
            (_, Some(rule)) => format!(": {}", self.described(rule)),
            (1, None) => format!(": {named}, probably"),
            (count, None) if count <= NAMED => format!(": one of these: {named}{more}"),
            (count, None) => format!(": one of {count} rules, the first of them {named}{more}"),
        }
    }

    pub(super) fn named(&self) -> String {
        let named: Vec<String> = self.rules.iter().take(NAMED).map(|rule| self.described(rule)).collect();
        named.join("; ")
    }

    fn described(&self, rule: &FirewallRule) -> String {
        let owner = self.owner_of(rule).map(|owner| format!(", made by {}", owner.name)).unwrap_or_default();
        let comment = rule.comment.as_deref().map(|reported| format!(" {reported:?}")).unwrap_or_default();
        format!("{}{comment} in chain {}{owner}", name_of(rule), chain_of(rule))
    }

    /// The command that shows the chain.
    pub(super) fn command(&self) -> Option<String> {
        self.rules.first().map(|rule| command(rule))
    }

    /// What was found, as evidence.
    pub(super) fn evidence(&self) -> Vec<Evidence> {
        self.rules.iter().take(NAMED).map(|rule| self.evidence_of(rule)).collect()
    }

    fn evidence_of(&self, rule: &FirewallRule) -> Evidence {
        let certain = if self.certain().is_some() { "dropped it" } else { "can have dropped it" };
        let says = format!("{} {certain}", self.described(rule));
        let legacy = rule.backend == Backend::IptablesLegacy;
        let fields = json!({
            "table": rule.table, "family": rule.family, "chain": rule.chain, "hook": rule.hooks.join(","),
            "base_chain": rule.base.as_ref().filter(|base| **base != rule.chain), "backend": rule.backend,
            "verdict": rule.verdict, "policy": rule.policy.then_some(true), "comment": rule.comment,
            "handle": rule.handle.filter(|_| !legacy), "rule_number": rule.handle.filter(|_| legacy),
            "packets": rule.packets, "owner": self.owner_of(rule).map(|owner| owner.name),
            "candidates": (self.rules.len() > 1).then_some(self.rules.len()),
        });
        evidence("netfilter", self.reading.at, says, fields)
    }
}

fn name_of(rule: &FirewallRule) -> String {
    match (rule.policy, rule.handle, rule.backend) {
        (true, ..) => "the policy".to_owned(),
        (false, Some(handle), Backend::IptablesLegacy) => format!("rule {handle}"),
        (false, Some(handle), _) => format!("the rule with handle {handle}"),
        (false, None, _) => "a rule".to_owned(),
    }
}

fn chain_of(rule: &FirewallRule) -> String {
    match rule.backend {
        Backend::Nftables => format!("{} {} {}", rule.family, rule.table, rule.chain),
        Backend::IptablesNft => format!("{} of table {} (iptables-nft, {})", rule.chain, rule.table, rule.family),
        Backend::IptablesLegacy => format!("{} of table {} (iptables-legacy, {})", rule.chain, rule.table, rule.family),
    }
}

fn command(rule: &FirewallRule) -> String {
    let six = if rule.family == "ip6" { "6" } else { "" };
    let (family, table, chain) = (&rule.family, shell::table(&rule.table), shell::chain(&rule.chain));
    match rule.backend {
        Backend::Nftables => format!("nft -a list chain {family} {table} {chain}"),
        Backend::IptablesNft => format!("ip{six}tables-nft -t {table} -vS {chain}"),
        Backend::IptablesLegacy => format!("ip{six}tables-legacy -t {table} -vS {chain}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rule;

    /// Who may write rules in a pod's namespace names its chains.
    #[test]
    fn a_chains_name_is_no_command() {
        let rule = rule("in$(reboot)", RuleVerdict::Drop);
        let shown =
            command(&FirewallRule { backend: Backend::Nftables, family: "inet".into(), table: "f;l".into(), ..rule });
        assert_eq!(shown, "nft -a list chain inet TABLE CHAIN");
    }

    /// On many nodes `iptables` is the legacy one, which does not see these.
    #[test]
    fn a_chain_is_listed_by_the_program_that_has_it() {
        let shown = |backend, family: &str| {
            let rule = rule("cali-tw-x", RuleVerdict::Drop);
            command(&FirewallRule { backend, family: family.into(), table: "filter".into(), ..rule })
        };
        assert_eq!(shown(Backend::IptablesNft, "ip"), "iptables-nft -t filter -vS cali-tw-x");
        assert_eq!(shown(Backend::IptablesNft, "ip6"), "ip6tables-nft -t filter -vS cali-tw-x");
        assert_eq!(shown(Backend::IptablesLegacy, "ip6"), "ip6tables-legacy -t filter -vS cali-tw-x");
    }

    /// The stack of the drop does not always tell the hook.
    #[test]
    fn base_chains_of_different_hooks_do_not_follow_each_other() {
        let at = |hook: &str, priority| {
            let base = format!("{hook}{priority}");
            let rule = FirewallRule { first: true, priority: Some(priority), ..rule(&base, RuleVerdict::Drop) };
            FirewallRule { hooks: vec![hook.to_owned()], ..rule }
        };
        let reached = |first: FirewallRule, second: FirewallRule| {
            reached(vec![(0, &first), (1, &second)]).into_iter().map(|(place, _)| place).collect::<Vec<_>>()
        };
        assert_eq!(reached(at("INPUT", -150), at("INPUT", 0)), [0]);
        assert_eq!(reached(at("INPUT", -150), at("PREROUTING", 0)), [0, 1]);
        assert_eq!(reached(at("INGRESS", -150), at("INGRESS", 0)), [0, 1], "of another device");
    }
}
