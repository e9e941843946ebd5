//! Finds the rule that dropped a packet, among the rules of the namespace that fit the hook, the backend, the flow and
//! the verdict. A single one that fits did it. Several are candidates.

use serde_json::json;

use crate::Case;
use crate::blocked::Blame;
use crate::drop_reason::{BRIDGE, dropped_in, is_nameless, netfilter_hook};
use crate::evidence::evidence_of;
use crate::owner::{self, Owner, owner_of};
use tracer_attempts::correlate::firewalls::Reading;
use tracer_model::event::path::{Packet, Takers};
use tracer_model::event::{Backend, Firewall, FirewallRule, Limit, PacketDrop, RuleVerdict, Tracked};
use tracer_model::record::Evidence;

const NAMED: usize = 3;
/// Rules that were read this long before the drop prove nothing: rules change, and namespace numbers are used again.
const STALE_NS: u64 = 1_000_000_000;

/// nftables frees a packet in its chain only for a rule (`nft_do_chain`).
const RULE_IS_GONE: &str = "; an nftables rule did it, and none that was read there fits: most likely it is gone since, or an element of its set";
const NO_BRIDGE_RULE_FITS: &str = "; no rule that was read there fits; a rule of ebtables-legacy, which tracer does not read, a program or module at a netfilter hook, or a rule that is gone did it";
/// Follows a sentence, if all rules were read and none can have dropped the packet.
const NO_RULE_FITS: &str = "; no rule that was read there fits; connection tracking, IPVS, a program or module at a netfilter hook, or a rule that is gone did it";

/// The rules that can have dropped this packet; `None` if the rules of its namespace were not read at that time.
pub fn blame<'a>(case: &Case<'a>, time: u64, drop: &PacketDrop, verdict: RuleVerdict) -> Option<Blame<'a>> {
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
            reachable(fitting.collect())
        }
    };
    let take_all = takers.is_some_and(|takers| takers.take_all);
    let complete = reading.firewall.is_complete_for(drop.flow) && reading.covers(time);
    let dropped = |(at, rule): &Candidate<'_>| has_dropped(reading, *at, rule, take_all, (time, drop));
    let by_rule = is_freed_in_chain(drop) || reached.iter().any(dropped);
    let if_none = match netfilter_hook(drop) {
        _ if by_rule => RULE_IS_GONE,
        Some(BRIDGE) => NO_BRIDGE_RULE_FITS,
        _ => NO_RULE_FITS,
    };
    let mut rules: Vec<_> = reached.into_iter().map(|(_, rule)| rule).collect();
    // A rule that had taken nothing when it was read is named last: the reading may be older than the drop.
    rules.sort_by_key(|rule| rule.packets == Some(0));
    Some(Blame { rules, complete, by_rule, nameless: is_nameless(drop), take_all, if_none, reading })
}

/// The rules that the packet can have reached and matched. Known only if the path of this flow through the rules was
/// read, and no translation changed the packet.
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

/// Whether this rule dropped the packet: `nf_hook_slow` also frees what connection tracking and IPVS drop. The rule
/// must have counted the packet, or take every packet that reaches it. If connection tracking comes before the rule,
/// its table must not have been full: then it drops packets itself.
fn has_dropped(
    reading: &Reading,
    at: usize,
    rule: &FirewallRule,
    take_all: bool,
    (time, drop): (u64, &PacketDrop),
) -> bool {
    let takes_all = (rule.exact || rule.policy || take_all) && rule.packets != Some(0);
    let can_reach_it = || is_before_tracking(rule) || !may_lack_entry(drop) || !reading.lacked_room(time);
    (takes_all || reading.took_some(at, time)) && can_reach_it()
}

/// The rule comes before connection tracking: no packet has an entry there.
pub fn is_before_tracking(rule: &FirewallRule) -> bool {
    let raw = rule.backend != Backend::Nftables && rule.table == "raw";
    rule.priority.map_or(raw, |priority| priority < CONNTRACK_PRIORITY)
}

/// Whether the packet may have lacked a connection tracking entry. At these hooks connection tracking gives a packet an
/// entry or drops it (`nf_conntrack_in`); only an invalid packet goes on without one.
fn may_lack_entry(drop: &PacketDrop) -> bool {
    drop.tracked.is_none_or(|it| it == Tracked::No)
        && matches!(netfilter_hook(drop), None | Some("PREROUTING" | "OUTPUT"))
}

/// A SYN that may lack an entry was dropped at a hook where connection tracking makes entries. The function that runs
/// the hooks freed it, and not an nftables rule, or the kernel hides the function.
pub fn may_be_by_tracking(drop: &PacketDrop) -> bool {
    let by_hooks = dropped_in(drop) == Some("nf_hook_slow") || is_nameless(drop);
    drop.flags.is_syn() && by_hooks && may_lack_entry(drop)
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

/// From 6.7 on (`nft_do_chain`: `NF_DROP_REASON`) an nftables rule frees the packet inside its chain. `nf_hook_slow`
/// then frees only what a policy or another backend drops. Before 6.7, `nf_hook_slow` frees all of them.
fn backend_fits(case: &Case<'_>, rule: &FirewallRule, drop: &PacketDrop) -> bool {
    let legacy = rule.backend == Backend::IptablesLegacy;
    match dropped_in(drop) {
        _ if is_freed_in_chain(drop) => !legacy,
        Some("nf_hook_slow") if frees_in_chain(case) => legacy || rule.policy,
        _ => true,
    }
}

fn is_freed_in_chain(drop: &PacketDrop) -> bool {
    dropped_in(drop) == Some("nft_do_chain")
}

fn frees_in_chain(case: &Case<'_>) -> bool {
    let release = case.node.start.as_ref().map_or("", |start| start.kernel.as_str());
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

/// Removes the rules that come after a rule which takes every such packet.
fn reachable(mut candidates: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    if candidates.iter().any(|(_, rule)| owner::is_endpoints_check(rule)) {
        candidates.retain(|(_, rule)| !owner::is_cluster_ips_check(rule));
    }
    let ends: Vec<&FirewallRule> = candidates.iter().map(|(_, rule)| *rule).filter(|rule| rule.exact).collect();
    for end in ends {
        let mut after = false;
        candidates.retain(|(_, rule)| {
            let never_met = comes_later(end, rule) || (after && same_base(end, rule));
            after |= std::ptr::eq(*rule, end);
            !never_met
        });
    }
    candidates
}

fn same_base(left: &FirewallRule, right: &FirewallRule) -> bool {
    let place = |rule: &FirewallRule| (rule.backend, rule.base.clone());
    left.base.is_some() && place(left) == place(right) && left.table == right.table && left.family == right.family
}

/// The base chain of `end` runs before that of `rule` at the same hook, and nothing before `end` accepts the packet.
/// Chains of `INGRESS` and `EGRESS` may belong to other devices, and `BRIDGE` stands for several hooks.
fn comes_later(end: &FirewallRule, rule: &FirewallRule) -> bool {
    let is_one = |hook: &str| !matches!(hook, "INGRESS" | "EGRESS" | "BRIDGE");
    let together = end.hooks.iter().any(|hook| is_one(hook) && rule.hooks.contains(hook));
    end.first && together && end.priority.zip(rule.priority).is_some_and(|(end, rule)| end < rule)
}

impl Blame<'_> {
    /// The packet was answered, which only a rule that rejects does.
    pub fn answered(self) -> Self {
        Self { by_rule: self.by_rule || !self.rules.is_empty(), ..self }
    }

    /// The only rule that can have dropped the packet.
    pub fn certain(&self) -> Option<&FirewallRule> {
        match self.rules.as_slice() {
            [only] if self.complete && self.by_rule && !self.nameless => Some(only),
            _ => None,
        }
    }

    /// Whether there is such a rule and it takes every such packet.
    pub(crate) fn certainly_takes(&self) -> bool {
        self.certain().is_some_and(|rule| rule.exact || self.take_all)
    }

    /// Whether all candidates are like that. Candidates that were not read may be missing.
    pub fn all_read(&self, like: impl Fn(&FirewallRule) -> bool) -> bool {
        !self.rules.is_empty() && self.rules.iter().all(|rule| like(rule))
    }

    /// Whether connection tracking comes before all candidates: a packet that reaches one without an entry was invalid.
    pub fn come_after_tracking(&self) -> bool {
        let iptables = |rule: &FirewallRule| rule.backend != Backend::Nftables && rule.table != "raw";
        let after = |rule: &FirewallRule| rule.priority.map_or(iptables(rule), |at| at > CONNTRACK_PRIORITY);
        self.rules.iter().all(|rule| after(rule))
    }

    /// All rules were read, and none of them can have dropped the packet.
    pub fn fits_no_rule(&self) -> bool {
        self.complete && self.rules.is_empty() && !self.by_rule
    }

    /// A rule dropped the packet, and none of those that were read fits.
    pub(crate) fn is_gone(&self) -> bool {
        self.complete && self.rules.is_empty() && self.by_rule
    }

    /// Whether all candidates are like that, and none is missing.
    pub fn all(&self, like: impl Fn(&FirewallRule) -> bool) -> bool {
        self.complete && self.all_read(like)
    }

    /// The rule takes only packets that connection tracking found invalid, or does not track.
    pub fn takes_only_invalid(&self, rule: &FirewallRule) -> bool {
        let Firewall { rules, path, .. } = &self.reading.firewall;
        let at = || rules.iter().position(|it| std::ptr::eq(it, rule));
        rule.when.invalid || path.as_ref().zip(at()).is_some_and(|(path, at)| path.takes_only_invalid(at))
    }

    /// All candidates check the route back, as rp_filter does.
    pub fn is_reverse_path(&self) -> bool {
        self.all(|rule| rule.when.rpf)
    }

    /// All candidates give the packet to a transparent proxy on this port (0: the packet's own port). Such a rule drops a
    /// packet if no process listens there with IP_TRANSPARENT (`tproxy_tg4`, net/netfilter/xt_TPROXY.c).
    pub fn proxy_port(&self) -> Option<u16> {
        let port = self.rules.first()?.proxy_port?;
        self.all(|rule| rule.proxy_port == Some(port)).then_some(port)
    }

    /// The software that made the first candidate.
    pub fn owner(&self) -> Option<Owner> {
        self.rules.first().and_then(|rule| self.owner_of(rule))
    }

    pub fn owner_of(&self, rule: &FirewallRule) -> Option<Owner> {
        owner_of(rule, &self.reading.firewall.rules)
    }

    /// The rule or the candidates, as a clause that follows a sentence.
    pub fn words(&self) -> String {
        let named = self.named();
        let more = if self.complete { "" } else { " or one that was not read" };
        let words = match (self.rules.len(), self.certain()) {
            (0, _) if self.complete => self.if_none.to_owned(),
            (0, _) => String::new(),
            (_, Some(rule)) if rule.policy && rule.limit.is_none() => {
                format!("; it is {}: no rule accepts the packet", self.described(rule))
            }
            (_, Some(rule)) => format!("; it is {}", self.described(rule)),
            (1, None) => format!("; it is probably {named}"),
            (count, None) if count <= NAMED => format!("; it is one of these: {named}{more}"),
            (count, None) => format!("; it is one of {count} rules, the first of them {named}{more}"),
        };
        let what = match self.limit() {
            None => return words,
            Some(Limit::Rate) => "a limit of the rate",
            Some(Limit::Connections) => "a limit of connections",
            Some(Limit::Share) => "chance, or a count of packets,",
        };
        format!("{words}; {what} decides which packets it takes: only some attempts fail")
    }

    /// Where a rule that allows the packet belongs, if all candidates are in one chain.
    pub(crate) fn where_to_allow(&self) -> Option<String> {
        let chain = chain_of(self.rules.first()?);
        let rule = self.certain().filter(|rule| !rule.policy && rule.handle.is_some());
        let before = rule.map(|rule| format!(", before {}", name_of(rule))).unwrap_or_default();
        self.all(|rule| chain_of(rule) == chain).then(|| format!(" in chain {chain}{before}"))
    }

    /// What decides which packets the candidates take.
    fn limit(&self) -> Option<Limit> {
        let limit = self.rules.first()?.limit?;
        self.all(|rule| rule.limit == Some(limit)).then_some(limit)
    }

    /// The fix for rules that limit.
    pub(crate) fn raise_limit(&self) -> Option<&'static str> {
        Some(match self.limit()? {
            Limit::Rate => "Raise the rate that the limit allows, or let the kubelet's probes pass before it",
            Limit::Connections => {
                "Raise the number of connections that the limit allows, or find who holds so many. Or let the kubelet's probes pass before it"
            }
            Limit::Share => {
                "Remove the rule if it is left over from a test of packet loss, or let the kubelet's probes pass before it"
            }
        })
    }

    pub fn named(&self) -> String {
        let named: Vec<String> = self.rules.iter().take(NAMED).map(|rule| self.described(rule)).collect();
        named.join("; ")
    }

    fn described(&self, rule: &FirewallRule) -> String {
        let owner = self.owner_of(rule).map(|owner| format!(" (made by {})", owner.name)).unwrap_or_default();
        let comment = rule.comment.as_deref().map(|reported| format!(" {reported:?}")).unwrap_or_default();
        format!("{}{comment} in chain {}{owner}", name_of(rule), chain_of(rule))
    }

    /// The commands that show the chains of the named candidates.
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for command in self.rules.iter().take(NAMED).map(|rule| command(rule)) {
            if !commands.contains(&command) {
                commands.push(command);
            }
        }
        commands
    }

    /// The first candidates, as evidence.
    pub fn evidence(&self) -> Vec<Evidence> {
        self.rules.iter().take(NAMED).map(|rule| self.evidence_of(rule)).collect()
    }

    fn evidence_of(&self, rule: &FirewallRule) -> Evidence {
        let can = if self.certain().is_some() { "" } else { "can have " };
        let did = match rule.verdict {
            RuleVerdict::Drop => "dropped",
            RuleVerdict::Reject => "rejected",
        };
        let text = format!("{} {can}{did} it", self.described(rule));
        let legacy = rule.backend == Backend::IptablesLegacy;
        let fields = json!({
            "table": rule.table, "family": rule.family, "chain": rule.chain, "hook": rule.hooks.join(","),
            "base_chain": rule.base.as_ref().filter(|base| **base != rule.chain), "backend": rule.backend,
            "verdict": rule.verdict, "policy": rule.policy.then_some(true), "comment": rule.comment,
            "handle": rule.handle.filter(|_| !legacy), "rule_number": rule.handle.filter(|_| legacy),
            "limit": rule.limit, "packets": rule.packets, "owner": self.owner_of(rule).map(|owner| owner.name),
            "proxy_port": rule.proxy_port, "candidates": (self.rules.len() > 1).then_some(self.rules.len()),
        });
        evidence_of("netfilter", self.reading.at, text, fields)
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
    rule.backend.list_chain(&rule.family, &rule.table, &rule.chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::rule;

    /// Whoever may write rules in a pod's namespace chooses the names of its chains.
    #[test]
    fn a_chain_name_cannot_inject_a_command() {
        let rule = rule("in$(reboot)", RuleVerdict::Drop);
        let shown =
            command(&FirewallRule { backend: Backend::Nftables, family: "inet".into(), table: "f;l".into(), ..rule });
        assert_eq!(shown, "nft -a list chain inet TABLE CHAIN");
    }

    /// The rule's handle or number can be seen: iptables shows no handles, and `-S` no numbers.
    #[test]
    fn a_chain_is_listed_with_what_names_its_rules() {
        let shown = |backend, family: &str| {
            let rule = rule("cali-tw-x", RuleVerdict::Drop);
            command(&FirewallRule { backend, family: family.into(), table: "filter".into(), ..rule })
        };
        assert_eq!(shown(Backend::IptablesNft, "ip"), "nft -a list chain ip filter cali-tw-x");
        assert_eq!(shown(Backend::IptablesNft, "ip6"), "nft -a list chain ip6 filter cali-tw-x");
        let legacy = "ip6tables-legacy -t filter -vnL cali-tw-x --line-numbers";
        assert_eq!(shown(Backend::IptablesLegacy, "ip6"), legacy);
    }

    /// The stack of a drop does not always show the hook.
    #[test]
    fn base_chains_of_different_hooks_do_not_follow_each_other() {
        let at = |hook: &str, priority| {
            let base = format!("{hook}{priority}");
            let rule = FirewallRule { first: true, priority: Some(priority), ..rule(&base, RuleVerdict::Drop) };
            FirewallRule { hooks: vec![hook.to_owned()], ..rule }
        };
        let places = |first: FirewallRule, second: FirewallRule| {
            reachable(vec![(0, &first), (1, &second)]).into_iter().map(|(place, _)| place).collect::<Vec<_>>()
        };
        assert_eq!(places(at("INPUT", -150), at("INPUT", 0)), [0]);
        assert_eq!(places(at("INPUT", -150), at("PREROUTING", 0)), [0, 1]);
        assert_eq!(places(at("INGRESS", -150), at("INGRESS", 0)), [0, 1], "of another device");
    }
}
