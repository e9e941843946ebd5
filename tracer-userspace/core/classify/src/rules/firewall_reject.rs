//! A netfilter rule answered a packet of this flow with a RST or an ICMP error.

use super::*;
use tracer_case::blocked::Blocked;
use tracer_case::netfilter::rejected;
use tracer_case::reject_answer::RejectAnswer;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    by_rule(case).or_else(|| from_elsewhere(case))
}

fn by_rule(case: &Case<'_>) -> Option<Finding> {
    let blocked = rejected(case)?;
    let summary = format!("{}{}{}", blocked.subject(case), blocked.action(case), blocked.words());
    let allow = || blocked.allow(case).run(blocked.show_rules(case));
    let remediation = blocked.fix(case, allow);
    let found = blocked.by_firewall(case, Cause::FirewallReject, summary, remediation);
    Some(if may_be_of_service(case, blocked) { note_unread_rules(found) } else { found })
}

/// A SYN_SENT socket gets this error by a RST, which has a hook, or by ICMP port unreachable (`icmp_err_convert`,
/// net/ipv4/icmp.c; `tab_unreach`, net/ipv6/icmp.c). No stack sends that for TCP, and nobody on this node did.
fn from_elsewhere(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, _) = attempt.ended.filter(|_| case.settled && in_handshake(case))?;
    let state = attempt.last.as_ref().filter(|state| state.errno == Some(libc::ECONNREFUSED))?;
    let is_known = attempt.resets_sent().next().is_some() || drops(case).any(|(_, drop)| drop.flags.is_syn());
    if is_known || attempt.reset_received().is_some() || attempt.icmp().next().is_some() || case.lacks(RST_HOOK) {
        return None;
    }
    let (dst, version) = (attempt.flow.dst, if attempt.flow.dst.is_ipv6() { "ICMPv6" } else { "ICMP" });
    let summary = format!(
        "the SYN to {dst} was answered with {version} port unreachable, and no hook saw a sender on this node: most likely a firewall or a load balancer on the way rejected it"
    );
    let fix = Remediation::from(format!(
        "Find the firewall between this node and {dst} that rejects it, or the load balancer that has no backend for it. The first command shows where it goes, the second one where it is refused"
    ))
    .run([format!("ip route get {}", dst.ip()), format!("traceroute -n -T -p {} {}", dst.port(), dst.ip())]
        .map(|command| run_in(case, attempt.netns, command)));
    let found = Finding::likely(Cause::FirewallReject, vec![of_state(ended, state)], summary, fix);
    Some(found.resting_on(&[Hook::KfreeSkb, Hook::TcpReceiveReset, Hook::IcmpSend, Hook::Icmp6Send]))
}

const RST_HOOK: &[Hook] = &[Hook::TcpReceiveReset];

/// The rules were not read since then, and it may be kube-proxy's for a Service without endpoints. Only an address of
/// no pod can be a Service's.
fn may_be_of_service(case: &Case<'_>, blocked: &Blocked<'_>) -> bool {
    let on_node = blocked.netns.is_none_or(|netns| case.node.is_a_node(netns));
    let answers_so = blocked.answer.is_some_and(RejectAnswer::may_be_port_unreachable);
    blocked.blame.is_none()
        && in_handshake(case)
        && on_node
        && answers_so
        && !case.node.has_pod(case.attempt.flow.dst.ip())
}

fn note_unread_rules(found: Finding) -> Finding {
    let note = "; tracer has not read the rules yet: it may be the rule of a Service without endpoints";
    let confidence = found.confidence.min(Confidence::Likely);
    Finding { summary: found.summary.clone() + note, confidence, ..found }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_rst_for_a_dropped_syn_or_port_unreachable_alone_is_a_reject() {
        let first = Stream::new().connect().filtered(SYN, POD).reset_received(TcpState::SynSent, 0).clone();
        assert_eq!(first.causes(), ["firewall_reject"]);
        let second = Stream::new().connect().reset_received(TcpState::SynSent, 0).filtered(SYN, POD).clone();
        assert_eq!(second.causes(), ["firewall_reject"], "in either order");
        assert_eq!(Stream::new().connect().icmp(3, 3).causes(), ["firewall_reject"]);
        assert_eq!(Stream::new().connect().icmp(3, 1).gives_up().causes(), ["route_unreachable"], "host unreachable");
    }

    /// Seen on 6.18 with a router that is not of this node.
    #[test]
    fn a_refusal_without_a_rst_came_from_elsewhere() {
        let reported = |before: fn(&mut Stream)| {
            let mut stream = Stream::to("10.77.0.5:8080");
            before(&mut stream);
            stream.connect().wait_ms(3).state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
            stream.settles().verdict()
        };
        let verdict = reported(|_| ());
        assert_eq!((verdict.cause.name(), verdict.confidence), ("firewall_reject", Confidence::Likely));
        assert_has(&verdict.summary, &["with ICMP port unreachable, and no hook saw a sender on this node"]);
        let blind = reported(|stream| _ = stream.missing(Hook::TcpReceiveReset));
        assert_eq!(blind.cause.name(), "unexplained", "a RST would look the same");
    }

    /// A RST has no rate limit. Hardening of the node, or `ct state invalid drop`, drops it.
    #[test]
    fn a_rst_of_the_rule_that_the_node_drops_is_named() {
        let mut stream = Stream::new().connect().filtered(SYN, POD).drop_back(TcpFlags(0x14), "NETFILTER_DROP").clone();
        stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Reject)]));
        let verdict = stream.gives_up().last_verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("firewall_reject", Confidence::Proven));
        assert_has(&verdict.summary, &["with a RST, which netfilter on the node drops: the prober gets no answer"]);
        assert_lacks(&verdict.summary, &["ratelimit"]);
    }

    /// The table may have an owner (`flags owner`): then nft cannot change it. A rule elsewhere is gone at a reload.
    #[test]
    fn firewalld_must_allow_what_its_other_chains_reject() {
        let fix = |table: &str, chain: &str| {
            let is_input = chain == "filter_INPUT";
            let hook = if is_input { "INPUT" } else { "OUTPUT" };
            let rule =
                FirewallRule { table: table.into(), hooks: vec![hook.into()], ..rule(chain, RuleVerdict::Reject) };
            let at = if is_input { "ip_local_deliver" } else { "__ip_local_out" };
            let mut stream = Stream::new();
            stream.links(true, &["127.0.0.1"]).connect().icmp_in(NODE, 3, 13).filtered_at(SYN, NODE, at);
            stream.push(firewall(NODE, vec![rule])).last_verdict().remediation
        };
        let commands =
            ["Let firewalld allow it", "firewall-cmd --get-active-policies; firewall-cmd --list-all-policies;"];
        assert_has(&fix("firewalld", "filter_OUT_POLICIES"), &commands);
        let of_zone =
            ["in place of ZONE", "firewall-cmd --get-active-zones; ", "firewall-cmd --zone=ZONE --add-rich-rule='"];
        assert_has(&fix("firewalld", "filter_INPUT"), &of_zone);
        assert_lacks(&fix("firewalld_policy_drop", "filter_INPUT"), &["firewall-cmd"]);
        assert_lacks(&fix("mine", "filter_OUT_POLICIES"), &["firewall-cmd"]);
    }

    /// A rule drops the copy that a bridge flooded to another pod, and the target's own stack refuses the SYN.
    #[test]
    fn a_rst_of_the_targets_own_stack_is_no_reject() {
        let mut stream = Stream::new().connect().filtered(SYN, NODE).reset_sent(SYN, true, None).clone();
        stream.reset_received(TcpState::SynSent, 0).push(firewall(NODE, Vec::new()));
        assert_eq!(stream.gives_up().last_decided(), ("connection_refused", Confidence::Proven));
    }

    /// The socket was in use when the ICMP error came: it keeps the error for its process, which closes it.
    #[test]
    fn a_prober_that_fails_at_once_got_an_answer() {
        let decided = |waits_ms: u64| {
            let rejecting = FirewallRule { exact: false, ..rule("INPUT", RuleVerdict::Reject) };
            let mut stream = Stream::new().connect().filtered(SYN, POD).push(firewall(POD, vec![rejecting])).clone();
            stream.wait_ms(waits_ms).state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0)).settles().last_decided()
        };
        assert_eq!(decided(1), ("firewall_reject", Confidence::Likely));
        assert_eq!(decided(1_000).0, "firewall_drop", "a rule with other conditions");
    }

    #[test]
    fn a_request_is_rejected_like_a_syn() {
        let mut reset = Stream::new().connect().established().filtered(TcpFlags(0x18), POD).clone();
        reset.resets((100, 1, 0));
        assert_eq!(reset.causes(), ["firewall_reject"]);
        let mut by_app = Stream::new().connect().established().filtered(TcpFlags(0x18), POD).wait_ms(200).clone();
        by_app.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
        by_app.state(TcpState::Established, TcpState::Close, 104, (200, 101, 0));
        assert_eq!(by_app.causes(), ["mid_stream_rst"]);
    }

    /// The acknowledgement of the SYN-ACK, before the request.
    #[test]
    fn a_bare_acknowledgement_is_rejected_like_a_request() {
        let mut stream = Stream::new().connect().established().filtered(TcpFlags(0x10), POD).clone();
        stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Reject)])).resets((0, 1, 0));
        assert_has(&stream.verdict().summary, &["rejected the segment to 10.88.0.2:8080 with a RST"]);
        assert_eq!(stream.decided(), ("firewall_reject", Confidence::Proven));
    }

    #[test]
    fn a_rejected_acknowledgement_after_the_answer_is_no_failure() {
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        stream.answer(AnswerKind::Http, Some(200)).filtered(TcpFlags(0x10), POD);
        stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Reject)]));
        stream.reset_received(TcpState::Established, 200);
        stream.state(TcpState::Established, TcpState::Close, 104, (100, 101, 200)).settles();
        assert!(stream.causes().is_empty(), "{:?}", stream.causes());
        let acknowledged = |flags: TcpFlags| {
            let mut stream = Stream::new().http_readiness().connect().established().filtered(flags, POD).clone();
            stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Reject)])).icmp(3, 3).last_icmp().flags = flags;
            stream.wait_ms(1_000).closes((100, 101, 0)).settles().verdict().cause.name()
        };
        assert_eq!(acknowledged(TcpFlags(0x18)), "firewall_reject");
        assert_eq!(acknowledged(TcpFlags(0x10)), "slow_response", "the request got through");
    }

    /// fail2ban on the node has banned the pod's address: its rules reject all packets from there.
    #[test]
    fn a_rejected_answer_of_the_target_names_what_the_target_gets() {
        let decided = |flags: TcpFlags, icmp: bool| {
            let mut stream = Stream::new().connect().clone();
            if !flags.is_syn_ack() {
                stream.established();
            }
            let back = stream.drop_back(flags, "NETFILTER_DROP").last_drop().flow;
            stream.push(firewall(NODE, vec![rule("f2b", RuleVerdict::Reject)]));
            if icmp {
                stream.icmp_in(NODE, 3, 3);
                (stream.last_icmp().flow, stream.last_icmp().flags) = (back, flags);
            }
            if flags.is_syn_ack() {
                stream.gives_up()
            } else {
                stream.closes((100, 101, 0))
            };
            stream.verdict()
        };
        let sent = ["the SYN-ACK 10.88.0.2:8080 -> 10.88.0.1:40000", "the segment 10.88.0.2:8080 -> 10.88.0.1:40000"];
        for (flags, sent) in [(SYN_ACK, sent[0]), (TcpFlags(0x18), sent[1])] {
            for (icmp, answer) in [(true, "ICMP type 3 code 3 (port unreachable)"), (false, "an answer to the target")]
            {
                let verdict = decided(flags, icmp);
                assert_eq!(
                    (verdict.cause.name(), verdict.confidence),
                    ("firewall_reject", Confidence::Proven),
                    "{sent} {icmp}"
                );
                assert_has(&verdict.summary, &[&format!("rejected {sent} with {answer}; ")]);
                assert_has(&verdict.remediation, &["Allow the answers of 10.88.0.2:8080 to 10.88.0.1"]);
            }
        }
    }

    /// A later SYN and its answer may get through.
    #[test]
    fn a_rejected_answer_does_not_end_the_attempt() {
        let mut stream = Stream::new().connect().drop_back(SYN_ACK, "NETFILTER_DROP").clone();
        stream.push(firewall(NODE, vec![rule("f2b", RuleVerdict::Reject)])).settles();
        stream.wait_ms(1000).syn_again().established().closes((100, 101, 200));
        assert_eq!(stream.outcomes(), [Outcome::Noise]);
    }

    #[test]
    fn without_the_hook_for_rsts_of_a_stack_it_is_only_likely() {
        let decided = |missing: Hook| {
            let mut stream = Stream::new();
            stream.missing(missing).connect().established().filtered(TcpFlags(0x18), POD);
            stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Reject)])).resets((100, 1, 0)).settles();
            stream.last_decided()
        };
        assert_eq!(decided(Hook::TcpV4SendReset), ("firewall_reject", Confidence::Likely));
        assert_eq!(decided(Hook::TcpV6SendReset), ("firewall_reject", Confidence::Proven));
    }

    /// The rules have been read by then, so the verdict does not wait for them.
    #[test]
    fn a_rst_waits_for_the_event_of_its_sender() {
        let mut stream = Stream::new().connect().established().filtered(TcpFlags(0x18), POD).clone();
        stream.push(firewall(POD, Vec::new())).wait_ms(20);
        stream.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
        stream.state(TcpState::Established, TcpState::Close, 104, (200, 101, 0));
        assert_eq!(stream.causes(), ["mid_stream_rst"]);
    }

    #[test]
    fn if_no_rule_that_was_read_fits_the_summary_blames_no_rule() {
        let reported =
            |rules| Stream::new().connect().icmp(3, 3).filtered(SYN, POD).push(firewall(POD, rules)).last_verdict();
        let nobody = reported(vec![rule("INPUT", RuleVerdict::Drop)]);
        assert_eq!((nobody.cause.name(), nobody.confidence), ("firewall_reject", Confidence::Likely));
        assert_starts(&nobody.summary, "netfilter in ");
        let rule = reported(vec![rule("INPUT", RuleVerdict::Reject)]);
        assert_eq!(rule.confidence, Confidence::Proven);
        assert_starts(&rule.summary, "a netfilter rule in ");
        assert!(rule.evidence.iter().any(|it| it.text.ends_with(" rejected it")), "{:?}", rule.evidence);
    }
}
