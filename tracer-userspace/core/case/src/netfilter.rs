//! How netfilter stopped an attempt: it dropped a packet, or answered it. Several rules tell the causes of that apart.

use std::net::IpAddr;

use crate::allow::{ANY_ZONE, SHOW_FIREWALLD, SHOW_ZONES, allow_command};
use crate::blame::{blame, is_before_tracking, may_be_by_tracking};
use crate::blocked::{Blame, Blocked};
use crate::case::{
    ANSWER_NS, Case, REFUSAL_HOOKS, in_handshake, in_time, is_at_other_link, is_sent_elsewhere, may_decide, outbound,
    runs_ipvs,
};
use crate::drop_reason::{BRIDGE, at_hook, dropped_in, is_netfilter, netfilter_hook};
use crate::evidence::{of_drop, of_icmp, of_reset_received, of_state};
use crate::finding::Finding;
use crate::flooded::may_be_at_other_link;
use crate::owner::{FIREWALLD, PANIC, own_fix};
use crate::phrases::{in_namespace, run_in};
use crate::reject_answer::RejectAnswer;
use tracer_common::names::Hook;
use tracer_model::event::{
    FirewallRule, Icmp, PacketDrop, ProxyMode, ResetReceived, RuleVerdict, TcpFlags, TcpState, Tracked,
};
use tracer_model::record::{Cause, Command, Confidence, Evidence, Remediation};

const UNTRACKED: &str =
    "; a rule had taken it out of connection tracking (notrack), so that no rule for established connections knows it";

/// As [`ANSWER_NS`], for a request: TCP retransmits a segment after 200 ms at the earliest (`TCP_RTO_MIN`).
const REQUEST_ANSWER_NS: u64 = 100_000_000;

/// How netfilter stopped the attempt: by an answer, else by a silent drop.
pub fn blocked<'c, 'a>(case: &'c Case<'a>) -> Option<&'c Blocked<'a>> {
    rejected(case).or_else(|| dropped(case))
}

/// A rule answered with a RST or an ICMP error.
pub fn rejected<'c, 'a>(case: &'c Case<'a>) -> Option<&'c Blocked<'a>> {
    let answered = case.blocks.answered.get_or_init(|| by_answer(case)).as_ref();
    answered.or_else(|| silent(case).filter(|blocked| blocked.answer.is_some()))
}

/// A packet was dropped, and no answer came.
pub fn dropped<'c, 'a>(case: &'c Case<'a>) -> Option<&'c Blocked<'a>> {
    silent(case).filter(|blocked| blocked.answer.is_none())
}

fn silent<'c, 'a>(case: &'c Case<'a>) -> Option<&'c Blocked<'a>> {
    case.blocks.silent.get_or_init(|| without_answer(case)).as_ref()
}

fn by_answer<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let outbound_rejected = if in_handshake(case) {
        by_icmp(case).or_else(|| by_reset(case)).or_else(|| by_error(case))
    } else {
        rejected_request(case)
    };
    outbound_rejected.or_else(|| rejected_answer(case))
}

type Seen<'a> = (u64, &'a PacketDrop);

/// The SYN that netfilter dropped and that was answered at this time.
fn dropped_syn<'a>(case: &Case<'a>, answered: u64) -> Option<Seen<'a>> {
    let mut drops = case.attempt.drops();
    drops.find(|(time, d)| {
        let is_syn = d.flags.is_syn() && outbound(case, d) && is_netfilter(d);
        is_syn && time.abs_diff(answered) < ANSWER_NS && !is_at_other_link(case, d)
    })
}

/// An ICMP error about the SYN. The stack never sends port unreachable for TCP; the other errors need a drop by
/// netfilter.
fn by_icmp<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let (time, icmp, drop) =
        case.attempt.icmp().filter(|(at, i)| i.flags.is_syn() && is_unreachable(i) && in_time(case, *at)).find_map(
            |(time, icmp)| {
                let drop = dropped_syn(case, time);
                (is_port_unreachable(icmp) || drop.is_some()).then_some((time, icmp, drop))
            },
        )?;
    let blocked = answered(case, drop, of_icmp(time, icmp), RejectAnswer::of(icmp));
    Some(Blocked { netns: icmp.netns.or(blocked.netns), ..blocked })
}

/// Netfilter dropped the SYN, and still a RST answered it. If the target's stack sent the RST, another copy of the SYN,
/// or a later one, reached it.
fn by_reset<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let attempt = case.attempt;
    let by_target = attempt.resets_sent().any(|(_, r)| r.answered.is_syn() && r.flow.src == attempt.flow.dst);
    let (at, reset) = attempt.reset_received().filter(|(_, r)| r.state == TcpState::SynSent && !by_target)?;
    let drop = dropped_syn(case, at)?;
    Some(answered(case, Some(drop), of_reset_received(at, reset), RejectAnswer::Rst))
}

/// Netfilter dropped the SYN, and at that moment the socket failed without a RST. An ICMP error came that no hook
/// shows: ICMPv6 with tracepoints only, or one that netfilter made itself (`nf_reject_skb_v4_unreach`). The errors are
/// those of `icmp_err_convert` (net/ipv4/icmp.c) and `tab_unreach` (net/ipv6/icmp.c).
fn by_error<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let (ended, _) = case.attempt.ended?;
    let drop = dropped_syn(case, ended)?;
    let of_icmp = [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES];
    let refused = case.attempt.errno().is_some_and(|errno| of_icmp.contains(&errno));
    let state = case.attempt.last.as_ref().filter(|_| refused && case.attempt.reset_received().is_none())?;
    Some(answered(case, Some(drop), of_state(ended, state), RejectAnswer::IcmpError))
}

/// A rule rejected a segment of an established connection: the request, or a bare acknowledgement before it. It dropped
/// the segment and answered with an ICMP error, or with a RST that no stack of this node sent. Bytes that came before a
/// rejected acknowledgement may be the whole answer.
fn rejected_request<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let attempt = case.attempt;
    let request = |d: &PacketDrop| !d.flags.is_syn() && !d.flags.is_rst() && outbound(case, d) && is_netfilter(d);
    let mut drops = attempt.drops().filter(|(_, d)| request(d));
    drops.find_map(|drop| {
        let with = |at: u64| at.abs_diff(drop.0) < REQUEST_ANSWER_NS;
        let failed = drop.1.flags.has_data() || case.matched.failed() || attempt.kubelet().is_some();
        let cuts = |r: &ResetReceived| failed || r.bytes_received.is_none_or(|bytes| bytes == 0);
        // The event of the sender comes after that of the receiver: only a settled attempt shows that there is none.
        let maybe_by_stack = !case.settled || attempt.resets_sent().any(|(_, r)| r.flow.src == attempt.flow.dst);
        let of_it = |(at, r): &(u64, &ResetReceived)| r.state == TcpState::Established && with(*at) && cuts(r);
        let reset = attempt.reset_received().filter(|it| of_it(it) && !maybe_by_stack);
        let unreachable = |(at, i): &(u64, &Icmp)| with(*at) && !i.flags.is_syn() && is_unreachable(i);
        let fails = attempt.failed_by_itself() && (drop.1.flags.has_data() || !attempt.request_taken());
        let icmp = || attempt.icmp().find(unreachable).filter(|_| fails);
        let (evidence, answer) = match reset {
            Some((at, reset)) => (of_reset_received(at, reset), RejectAnswer::Rst),
            None => icmp().map(|(at, icmp)| (of_icmp(at, icmp), RejectAnswer::of(icmp)))?,
        };
        Some(answered(case, Some(drop), evidence, answer))
    })
}

/// A rule rejected the target's answer: the target gets the ICMP error, and the prober gets nothing.
fn rejected_answer<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let mut drops =
        case.attempt.drops().filter(|(at, d)| is_netfilter(d) && !outbound(case, d) && is_needed(case, *at, d));
    drops.find_map(|drop| {
        let of_it = |(at, i): &(u64, &Icmp)| {
            i.flow == drop.1.flow && is_unreachable(i) && at.abs_diff(drop.0) < REQUEST_ANSWER_NS
        };
        let (at, icmp) = case.attempt.icmp().find(of_it)?;
        Some(answered(case, Some(drop), of_icmp(at, icmp), RejectAnswer::of(icmp)))
    })
}

/// What stopped the attempt, if this answered the dropped packet.
fn answered<'a>(case: &Case<'a>, drop: Option<Seen<'a>>, by: Evidence, answer: RejectAnswer) -> Blocked<'a> {
    let mut evidence: Vec<_> = drop.map(|(time, drop)| of_drop(time, drop)).into_iter().chain([by]).collect();
    evidence.sort_by_key(|e| e.time_boot_ns);
    let blame = drop.and_then(|(time, drop)| blame(case, time, drop, RuleVerdict::Reject)).map(Blame::answered);
    Blocked { evidence, drop, netns: drop.and_then(|(_, drop)| drop.netns), answer: Some(answer), blame }
}

/// A packet was dropped, and no answer was seen. A rule that rejects also drops: its answer must have had time to come.
fn without_answer<'a>(case: &Case<'a>) -> Option<Blocked<'a>> {
    let (time, drop) = case.attempt.drops().find(|(at, d)| is_netfilter(d) && is_needed(case, *at, d))?;
    let ended = case.attempt.ended.map_or(u64::MAX, |(end, _)| end);
    // A RST after the end of the attempt does not answer the dropped packet.
    let is_reset = case.attempt.reset_received().is_some_and(|(at, _)| at <= ended);
    if !case.settled || is_reset || case.attempt.icmp().next().is_some() {
        return None;
    }
    let has_rules = |blame: &Blame<'_>| !blame.rules.is_empty();
    let lost = lost_reset(case).filter(|(at, _)| outbound(case, drop) && at.abs_diff(time) < ANSWER_NS);
    let dropping = blame(case, time, drop, RuleVerdict::Drop).filter(|_| lost.is_none());
    // Only a rule that rejects fits: no hook here shows its answer, or the kernel held the answer back.
    let is_shown = outbound(case, drop) && lost.is_none() && !case.lacks(ANSWER_HOOKS) && !failed_at_once(case);
    let can_be = |it: &Blame<'_>| if !is_shown { it.complete } else { it.certainly_takes() };
    let rejecting = || blame(case, time, drop, RuleVerdict::Reject).filter(has_rules).filter(can_be);
    let rejecting = if dropping.as_ref().is_some_and(has_rules) { None } else { rejecting() };
    let answer = match lost {
        Some(_) => Some(RejectAnswer::LostRst),
        None => rejecting.is_some().then(|| unseen_answer(case, drop)),
    };
    let blame = rejecting.or(dropping);
    let evidence = [Some((time, drop)), lost].into_iter().flatten().map(|(at, it)| of_drop(at, it)).collect();
    Some(Blocked { evidence, drop: Some((time, drop)), netns: drop.netns, answer, blame })
}

/// The prober did not wait: its socket got an error. A socket in use keeps the error of an ICMP message for its process
/// (`sk_err_soft`, `tcp_v4_err`), and no hook shows a message that netfilter made itself (`nf_reject_skb_v4_unreach`).
fn failed_at_once(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    in_handshake(case) && attempt.ended.is_some_and(|(end, _)| end.saturating_sub(attempt.started) < REQUEST_ANSWER_NS)
}

/// A RST that answers the SYN, and that was dropped on its way to the prober.
pub(crate) fn lost_reset<'a>(case: &Case<'a>) -> Option<Seen<'a>> {
    let mut drops = case.attempt.drops().filter(|_| in_handshake(case));
    drops.find(|(_, drop)| drop.flags.is_rst() && !outbound(case, drop))
}

/// "netfilter at INPUT on the node".
pub(crate) fn dropper(case: &Case<'_>, drop: &PacketDrop) -> String {
    let who = if is_netfilter(drop) { format!("netfilter{}", at_hook(drop)) } else { "the kernel".to_owned() };
    format!("{who}{}", in_namespace(case, drop.netns))
}

/// Why the answer of a rule that rejects was not seen. `__icmp_send` and `icmp6_send` limit the rate of errors
/// (`icmpv4_xrlim_allow`, `icmpv6_xrlim_allow`); a RST has no limit.
fn unseen_answer(case: &Case<'_>, drop: &PacketDrop) -> RejectAnswer {
    if !outbound(case, drop) {
        RejectAnswer::ToTarget
    } else if case.lacks(ANSWER_HOOKS) || failed_at_once(case) {
        RejectAnswer::NotShown
    } else {
        RejectAnswer::HeldBack { v6: case.attempt.flow.dst.is_ipv6() }
    }
}

/// The attempt needed the packet: it belongs to the handshake, or to the data of an attempt that failed for want of an
/// answer. A drop after the answer does no harm, nor does that of a SYN if a later one reached the listener.
pub fn is_needed(case: &Case<'_>, time: u64, drop: &PacketDrop) -> bool {
    let in_handshake = case.attempt.established.is_none() && !case.attempt.met_full_queue_after(time);
    let handshake = may_decide(case, time, drop) && (drop.flags.is_syn() || drop.flags.is_syn_ack()) && in_handshake;
    let before_end = case.attempt.ended.is_none_or(|(end, _)| time <= end);
    handshake || (before_end && case.attempt.established.is_some() && is_missed(case, time, drop))
}

/// The attempt failed, and the packet that was dropped after the handshake never got through. A request that was
/// acknowledged or answered did get through. So did a bare acknowledgement if the prober then sent again. A later drop
/// may be of the answer.
pub(crate) fn is_missed(case: &Case<'_>, time: u64, drop: &PacketDrop) -> bool {
    let attempt = case.attempt;
    let was_repeated = || drop.flags.may_be_bare() && attempt.sent_again > Some(time);
    let got_through = attempt.request_taken() && (outbound(case, drop) || was_repeated());
    let is_since = case.matched.unanswered_since().is_some_and(|since| time >= since);
    is_since && !drop.flags.is_rst() && !got_through && may_decide(case, time, drop)
}

/// Hooks that would have shown the answer of a rule that rejects.
const ANSWER_HOOKS: &[Hook] = &[Hook::TcpReceiveReset, Hook::IcmpSend, Hook::Icmp6Send];

/// These hooks, and the one that shows drops of IPVS.
const ANSWER_AND_IPVS_HOOKS: &[Hook] = &[Hook::TcpReceiveReset, Hook::IcmpSend, Hook::Icmp6Send, Hook::IpvsLeave];

/// IPVS may have dropped the packet: it does so at its hooks for requests (`ip_vs_ops4`), and that looks like a rule.
/// The packet goes to a virtual service, or may do so: of those with backends, only the ones on an address of the node
/// are read.
pub fn may_be_by_ipvs(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let (tables, to) = (&case.node.node_ports, drop.flow.dst);
    let is_loaded = || runs_ipvs(case) || case.node.has_ipvs();
    let may_be_service = || match outbound(case, drop) {
        true => !case.node.has_pod(to.ip()),
        false => tables.of(ProxyMode::Ipvs).is_none() || tables.of_ipvs_at(to).is_some(),
    };
    let by_hooks = matches!(dropped_in(drop), None | Some("nf_hook_slow"));
    let on_node = drop.netns.is_none() || drop.netns == case.node.netns();
    by_hooks && on_node && takes_requests_of_ipvs(drop) && is_loaded() && may_be_service()
}

/// The drop was at a hook at which IPVS takes requests, or the stack does not show the hook.
pub fn takes_requests_of_ipvs(drop: &PacketDrop) -> bool {
    matches!(netfilter_hook(drop), None | Some("INPUT" | "OUTPUT"))
}

/// Follows a sentence, if IPVS may have dropped the packet (`ip_vs_in_hook`, net/netfilter/ipvs/ip_vs_core.c).
pub const BY_IPVS: &str = "; or IPVS did: for a connection to a backend that is gone (expire_nodest_conn is 0), for an old conntrack entry, or by its defence (drop_packet)";
/// What to do if IPVS may have dropped the packet.
pub const ASK_IPVS: &str = "See whether IPVS has an entry of this source port for a backend that is gone (ipvsadm -Lnc): if so, set net.ipv4.vs.expire_nodest_conn to 1. If net.ipv4.vs.drop_packet is not 0, set it to 0";
pub const SHOW_BY_IPVS: [&str; 3] = [
    "ipvsadm -Ln --stats",
    "ipvsadm -Lnc",
    "sysctl net.ipv4.vs.expire_nodest_conn net.ipv4.vs.conn_reuse_mode net.ipv4.vs.drop_packet",
];

/// Connection tracking has seen the packet where it was dropped. It begins in PREROUTING and OUTPUT: rules of other
/// hooks, or of lower priority there, come before it or do without it.
fn sees_connections(drop: &PacketDrop, rules: &[&FirewallRule]) -> bool {
    !matches!(netfilter_hook(drop), Some("INGRESS" | "EGRESS" | BRIDGE))
        && drop.tracked != Some(Tracked::No)
        && !rules.iter().any(|rule| is_before_tracking(rule))
}

const fn is_unreachable(icmp: &Icmp) -> bool {
    icmp.icmp_type == if icmp.v6 { 1 } else { 3 }
}

/// The ICMP error has the code of port unreachable. The stack never sends that for TCP.
pub const fn is_port_unreachable(icmp: &Icmp) -> bool {
    icmp.code == if icmp.v6 { 4 } else { 3 }
}

/// The end of the fix where a policy of firewalld must allow the flow.
const BY_POLICY: &str = ". nft cannot change a table that firewalld owns. The first commands show its policies: allow the flow in one of them";

/// The same where one of its zones must.
const BY_ZONE: &str =
    ". The first command shows its zones: put the one that has the packet's link or source in place of ZONE";

impl Blocked<'_> {
    /// " at INPUT in pod a/b rejected the SYN to 1.2.3.4:80 with a RST".
    pub fn action(&self, case: &Case<'_>) -> String {
        let hook = self.drop.map(|(_, drop)| at_hook(drop)).unwrap_or_default();
        let place = in_namespace(case, self.netns);
        match (self.answer, self.drop) {
            (None, Some((_, drop))) => format!("{hook}{place} drops the {} {}", drop.flags.name(), drop.flow),
            (answer, _) => {
                let answer = answer.map(|it| format!(" with {it}")).unwrap_or_default();
                let what = match self.answer_dropped(case) {
                    Some(drop) => format!("{} {}", drop.flags.name(), drop.flow),
                    None if case.attempt.established.is_some() => {
                        let rejected = self.drop.map(|(_, drop)| drop.flags).filter(|flags| !flags.has_data());
                        format!("{} to {}", rejected.map_or("request", TcpFlags::name), case.attempt.flow.dst)
                    }
                    None => format!("SYN to {}", case.attempt.flow.dst),
                };
                let lost = lost_reset(case).filter(|_| self.answer == Some(RejectAnswer::LostRst));
                let describe = |drop| format!(", which {} drops: the prober gets no answer", dropper(case, drop));
                let lost = lost.map(|(_, drop)| describe(drop)).unwrap_or_default();
                format!("{hook}{place} rejected the {what}{answer}{lost}")
            }
        }
    }

    /// The rule or the candidates, as a clause that follows the sentence.
    pub fn words(&self) -> String {
        self.blame.as_ref().map(Blame::words).unwrap_or_default()
    }

    /// The subject of the sentence: a rule, unless rules were read and none of them can have done it.
    pub fn subject(&self, case: &Case<'_>) -> &'static str {
        let none_fits = self.blame.as_ref().is_some_and(|blame| blame.rules.is_empty() && !blame.by_rule);
        if none_fits || self.may_be_ipvs(case) || self.may_be_by_ipvs(case) { "netfilter" } else { "a netfilter rule" }
    }

    /// No rules were read, and IPVS, which drops as netfilter does, may have done it: the hook that shows it is
    /// missing.
    fn may_be_ipvs(&self, case: &Case<'_>) -> bool {
        let on_node = self.netns.is_none() || self.netns == case.node.netns();
        on_node && self.blame.is_none() && runs_ipvs(case) && case.lacks(&[Hook::IpvsLeave])
    }

    /// Not all rules were read, none of those that were fits, and IPVS may have done it.
    pub fn may_be_by_ipvs(&self, case: &Case<'_>) -> bool {
        let unknown = self.blame.as_ref().is_none_or(|blame| blame.rules.is_empty() && !blame.complete);
        let silent = unknown && self.answer.is_none();
        silent && self.drop.is_some_and(|(_, drop)| may_be_by_ipvs(case, drop))
    }

    /// No rule dropped the packet, but the route that the kernel looks up again at OUTPUT may have refused it: a rule of
    /// a route chain, or iptables' mangle table, had changed its mark (`ip_route_me_harder`, net/ipv4/netfilter.c). An
    /// address translation has the same effect (`nf_nat_ipv4_local_fn`).
    pub fn may_be_rerouted(&self, case: &Case<'_>) -> bool {
        let Some((_, drop)) = self.drop.filter(|_| self.answer.is_none()) else { return false };
        let took_none = |rule: &FirewallRule| is_sent_elsewhere(case, drop) && !rule.exact && rule.packets == Some(0);
        let no_rule = |it: &Blame<'_>| it.complete && !it.by_rule && it.rules.iter().all(|rule| took_none(rule));
        netfilter_hook(drop) == Some("OUTPUT") && self.blame.as_ref().is_some_and(no_rule)
    }

    /// No rules were read, and an address translation had sent it elsewhere. The route that the kernel looks up then may
    /// have refused it.
    fn is_unread_translation(&self, case: &Case<'_>) -> bool {
        let is_rerouted = |drop: &PacketDrop| netfilter_hook(drop) == Some("OUTPUT") && is_sent_elsewhere(case, drop);
        self.blame.is_none() && self.answer.is_none() && self.drop.is_some_and(|(_, drop)| is_rerouted(drop))
    }

    /// No rule dropped the SYN at POSTROUTING. What is left there is connection tracking, which could not enter it: the
    /// source NAT found no free port, or another packet took its port first (`__nf_conntrack_confirm`,
    /// net/netfilter/nf_conntrack_core.c; insert_failed).
    pub fn is_by_source_nat(&self, case: &Case<'_>) -> bool {
        let Some((_, drop)) = self.drop.filter(|_| self.answer.is_none()) else { return false };
        let is_syn = drop.flags.is_syn() && outbound(case, drop);
        netfilter_hook(drop) == Some("POSTROUTING") && is_syn && self.is_by_no_rule()
    }

    /// "10.88.0.1 -> port 8080" as the rule sees it, or the answers of the target if one of them was dropped.
    fn to_allow(&self, case: &Case<'_>) -> String {
        let (target, client) = (case.attempt.flow.dst, self.client(case));
        match self.drop {
            Some((_, drop)) if !outbound(case, drop) => {
                let rules = self.blame.as_ref().map_or(&[][..], |blame| &blame.rules);
                let established = if sees_connections(drop, rules) { " (ct state established)" } else { "" };
                format!("the answers of {target} to {client}{established}")
            }
            drop => format!("{client} -> port {}", drop.map_or(target, |(_, drop)| drop.flow.dst).port()),
        }
    }

    /// "Allow 10.88.0.1 -> port 8080 in chain inet filter input, before the rule with handle 2".
    pub fn allow(&self, case: &Case<'_>) -> Remediation {
        let place = self.blame.as_ref().and_then(Blame::where_to_allow).unwrap_or_else(|| {
            let hook = self.drop.map(|(_, drop)| at_hook(drop)).unwrap_or_default();
            let does = if self.answer.is_some() { "rejects" } else { "drops" };
            format!("{hook} before the rule that {does} it")
        });
        format!("Allow {}{place}", self.to_allow(case)).into()
    }

    /// The address that the rule sees as the client: it may have been translated before.
    fn client(&self, case: &Case<'_>) -> IpAddr {
        let translated = self.drop.and_then(|(_, drop)| case.attempt.translated(drop.flow));
        translated.unwrap_or(case.attempt.flow.src).ip()
    }

    /// The dropped packet, if it was an answer of the target.
    pub fn answer_dropped<'b>(&'b self, case: &Case<'_>) -> Option<&'b PacketDrop> {
        self.drop.map(|(_, drop)| drop).filter(|drop| !outbound(case, drop))
    }

    /// If the answer was exempt from connection tracking: a clause that says so, and commands that find the rule.
    pub fn untracked(&self, case: &Case<'_>) -> Option<(&'static str, [Command; 2])> {
        self.answer_dropped(case).filter(|drop| drop.tracked == Some(Tracked::Untracked))?;
        Some((UNTRACKED, self.find_notrack(case)))
    }

    /// Commands that find a rule which exempts packets from connection tracking.
    pub fn find_notrack(&self, case: &Case<'_>) -> [Command; 2] {
        let find = ["nft list ruleset | grep -w notrack", "iptables-save -t raw"];
        find.map(|command| run_in(case, self.netns, command))
    }

    /// Commands that show the chains of the rules, or all rules.
    pub fn show_rules(&self, case: &Case<'_>) -> Vec<Command> {
        let all = || ["nft list ruleset", "iptables-save -c"].map(str::to_owned).to_vec();
        let commands = self.blame.as_ref().map(Blame::commands).filter(|it| !it.is_empty()).unwrap_or_else(all);
        commands.iter().map(|command| run_in(case, self.netns, command)).collect()
    }

    /// The fix for the only rules that can have done it, which their owner adds for a reason of its own.
    fn own_fix(&self, case: &Case<'_>) -> Option<Remediation> {
        let (blame, _) = self.blame.as_ref().zip(self.netns.filter(|netns| case.node.is_a_node(*netns)))?;
        let own = own_fix(blame.rules.first()?)?;
        let fix = || Remediation::from(own.0).run([Command::in_cluster(own.1)]).run(self.show_rules(case));
        blame.all(|rule| own_fix(rule) == Some(own)).then(fix)
    }

    /// The command of the software that made the rule. Only on a node: the software manages no rules of a pod.
    fn by_owner(&self, case: &Case<'_>) -> Option<Remediation> {
        let (_, drop) = self.drop.filter(|(_, drop)| outbound(case, drop))?;
        let (blame, _) = self.blame.as_ref().zip(self.netns.filter(|netns| case.node.is_a_node(*netns)))?;
        let owner = blame.owner()?;
        if !blame.all(|rule| blame.owner_of(rule) == Some(owner)) {
            return None;
        }
        let hook = netfilter_hook(drop)?;
        let command = blame.rules.iter().find_map(|rule| allow_command(owner, rule, hook, drop.flow));
        let (more, commands) = match command {
            Some(command) if command.contains(&format!("--zone={ANY_ZONE} ")) => {
                (BY_ZONE, vec![SHOW_ZONES.to_owned(), command])
            }
            Some(command) => ("", vec![command]),
            None if owner == FIREWALLD && !blame.rules.iter().any(|rule| rule.table == PANIC) => {
                (BY_POLICY, SHOW_FIREWALLD.map(str::to_owned).to_vec())
            }
            None => return None,
        };
        let text = format!(
            "Let {0} allow it: a rule that another program adds is gone when {0} loads its rules again{more}",
            owner.name
        );
        Some(Remediation::from(text).run(commands.into_iter().map(Command::on_node)).run(self.show_rules(case)))
    }

    /// The fix for a rule, or for anything else that drops there.
    pub fn fix(&self, case: &Case<'_>, by_rule: impl FnOnce() -> Remediation) -> Remediation {
        if self.is_by_gone_rule() {
            return Remediation::from("Find what removes rules or elements of sets there, such as fail2ban or the CNI's agent. If it drops again, list the rules at once")
                .run(self.show_rules(case));
        }
        if !self.is_by_no_rule() {
            let fix = self.own_fix(case).or_else(|| self.by_owner(case)).unwrap_or_else(by_rule);
            let fix = match self.blame.as_ref().and_then(Blame::raise_limit) {
                Some(raise) => fix.reword(|text| format!("{raise}. Otherwise: {text}")),
                None => fix,
            };
            if !self.may_be_by_ipvs(case) {
                return fix;
            }
            let show = SHOW_BY_IPVS.map(|command| run_in(case, self.netns, command));
            return fix.reword(|text| format!("{ASK_IPVS}. If it is neither: {text}")).run(show);
        }
        let counters: &[&str] = match self.drop.and_then(|(_, drop)| netfilter_hook(drop)) {
            Some(BRIDGE) => &["ebtables-legacy -L --Lc", "bpftool link list", "nft list ruleset"],
            _ => &["conntrack -S", "ipvsadm -Ln --stats", "bpftool link list", "nft list ruleset", "iptables-save -c"],
        };
        Remediation::from("Find the counter that rises: no rule that was read can have dropped it")
            .run(counters.iter().map(|command| run_in(case, self.netns, *command)))
    }

    fn is_by_gone_rule(&self) -> bool {
        self.blame.as_ref().is_some_and(Blame::is_gone)
    }

    fn is_by_no_rule(&self) -> bool {
        self.blame.as_ref().is_some_and(Blame::fits_no_rule)
    }

    /// Another part of netfilter may have dropped the packet: rules fit but are not sure to drop it, or none were read.
    fn may_be_by_no_rule(&self, case: &Case<'_>) -> bool {
        self.may_be_by_ipvs(case)
            || match &self.blame {
                Some(blame) if !blame.rules.is_empty() => !blame.by_rule || (blame.nameless && self.answer.is_none()),
                Some(blame) if blame.by_rule => false,
                _ => self.drop.is_some_and(|(_, drop)| may_be_by_tracking(drop)),
            }
    }

    /// A bridge may have flooded the packet, and the rule may have dropped the copy for another pod.
    pub fn may_be_flooded(&self, case: &Case<'_>) -> bool {
        let answered = self.answer.is_some();
        self.drop.is_some_and(|(_, drop)| may_be_at_other_link(case.attempt, case.node, drop, answered))
    }

    /// A failure by a rule of the firewall; less sure if no rule surely did it, or if IPVS is in use and its hook
    /// missing.
    pub fn by_firewall(&self, case: &Case<'_>, cause: Cause, summary: String, remediation: Remediation) -> Finding {
        let no_rule = self.is_by_no_rule() || self.may_be_ipvs(case);
        // The rule may have rejected the packet, and the kernel held its answer back.
        let by_rule = !self.may_be_by_no_rule(case) && !self.is_unread_translation(case) && !self.is_by_gone_rule();
        let unsure = !by_rule || self.may_be_flooded(case);
        let found = self.finding(case, cause, summary, remediation);
        if !no_rule {
            let most = if unsure { Confidence::Likely } else { Confidence::Proven };
            return Finding { confidence: found.confidence.min(most), ..found };
        }
        let rests_on = match found.rests_on {
            hooks if !runs_ipvs(case) => hooks,
            [] => &[Hook::IpvsLeave],
            _ => ANSWER_AND_IPVS_HOOKS,
        };
        Finding { rests_on, confidence: found.confidence.min(Confidence::Likely), ..found }
    }

    /// A failure with this cause. That no answer came is a conclusion from silence.
    pub fn finding(
        &self,
        case: &Case<'_>,
        cause: Cause,
        summary: String,
        remediation: impl Into<Remediation>,
    ) -> Finding {
        let mut finding = Finding::failure(cause, self.evidence.clone(), summary, remediation);
        finding.evidence.extend(self.blame.iter().flat_map(Blame::evidence));
        let time = self.drop.map_or(finding.decided_at, |(time, _)| time);
        finding.waits_for = self.netns.map(|netns| (netns, time));
        match self.answer {
            None => finding.resting_on(ANSWER_HOOKS).of_seen_packet(case),
            Some(RejectAnswer::NotShown | RejectAnswer::HeldBack { .. }) => {
                finding.with_confidence(Confidence::Likely).rests_on_lost_packet()
            }
            // The prober sends its SYN again, and that one may get through.
            Some(RejectAnswer::ToTarget | RejectAnswer::LostRst) => finding.rests_on_lost_packet(),
            Some(_) if self.answer_dropped(case).is_some() => finding.rests_on_lost_packet(),
            // The finding rests on this: no stack of this node sent the RST.
            Some(RejectAnswer::Rst) if case.attempt.established.is_some() => {
                Finding { rests_on: REFUSAL_HOOKS, ..finding }
            }
            Some(RejectAnswer::Rst | RejectAnswer::Icmp { .. } | RejectAnswer::IcmpError) => finding,
        }
    }
}
