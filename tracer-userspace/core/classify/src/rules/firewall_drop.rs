//! A netfilter rule dropped a packet that this attempt needs.

use super::*;
use tracer_case::netfilter::{BY_IPVS, dropped};
use tracer_case::queue;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    by_rule(case).or_else(|| queue::by_process(case)).or_else(|| queue::without_reader(case))
}

fn by_rule(case: &Case<'_>) -> Option<Finding> {
    let is_by_rule = |blocked: &&Blocked<'_>| !blocked.may_be_rerouted(case) && !blocked.is_by_source_nat(case);
    let blocked = dropped(case).filter(is_by_rule)?;
    if let Some(found) = by_reverse_path(case, blocked).or_else(|| without_proxy(case, blocked)) {
        return Some(found);
    }
    let untracked = blocked.untracked(case);
    let how = untracked.as_ref().map(|(words, _)| *words).unwrap_or_default();
    let or_ipvs = if blocked.may_be_by_ipvs(case) { BY_IPVS } else { "" };
    let summary = format!("{}{}{}{how}{or_ipvs}", blocked.subject(case), blocked.action(case), blocked.words());
    let fix = || {
        let look = blocked.show_rules(case);
        match untracked.clone() {
            Some((_, find)) => Remediation::from(
                "Change the rule that exempts it from connection tracking (the first commands), or the rule that drops it (the last ones)",
            )
            .run(find)
            .run(look),
            None => blocked.allow(case).run(look),
        }
    };
    let remediation = blocked.fix(case, fix);
    Some(blocked.by_firewall(case, Cause::FirewallDrop, summary, remediation))
}

/// All rules that can have dropped the packet check the reverse path: whether the route back leads over the device on
/// which the packet arrived. A rule that allows the flow does not help.
fn by_reverse_path(case: &Case<'_>, blocked: &Blocked<'_>) -> Option<Finding> {
    let (_, drop) = blocked.drop?;
    let blame = blocked.blame.as_ref().filter(|blame| blame.is_reverse_path())?;
    let owner = blame.owner().map(|owner| format!(" of {}", owner.name)).unwrap_or_default();
    let device = drop.device.as_ref().map_or("the device it came in on", |device| device.name.as_str());
    let src = drop.flow.src.ip();
    let summary = format!(
        "the reverse-path check{owner}{}{}; such a rule drops packets that arrive on a link over which the route back does not lead: the route to {src} does not lead over {device}",
        blocked.action(case),
        blocked.words()
    );
    let route = run_in(case, blocked.netns, format!("ip route get {src}"));
    let remediation =
        Remediation::from(format!("Fix the route to {src}: it has to lead over {device}. Or change the check"))
            .run([route])
            .run(blocked.show_rules(case));
    Some(blocked.by_firewall(case, Cause::FirewallDrop, summary, remediation))
}

/// All rules that can have dropped the packet give it to a transparent proxy, which does not listen.
fn without_proxy(case: &Case<'_>, blocked: &Blocked<'_>) -> Option<Finding> {
    let (_, drop) = blocked.drop?;
    let blame = blocked.blame.as_ref()?;
    let port = blame.proxy_port()?;
    let port = if port == 0 { drop.flow.dst.port() } else { port };
    let why = match blame.certain() {
        Some(_) => "it is a TPROXY rule, and the kernel found no process that",
        None => "a TPROXY rule drops packets if no process",
    };
    let summary = format!(
        "{}{}{}; {why} listens on its port {port} with IP_TRANSPARENT",
        blocked.subject(case),
        blocked.action(case),
        blocked.words()
    );
    let listeners = run_in(case, blocked.netns, format!("ss -ltnp 'sport = :{port}'"));
    let remediation = Remediation::from(format!(
        "Start the proxy that listens on port {port} (a mesh's sidecar, or the CNI's proxy on the node), or restart it. If it was removed, delete the rule"
    ))
    .run([listeners])
    .run(blocked.show_rules(case));
    Some(blocked.by_firewall(case, Cause::FirewallDrop, summary, remediation))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// As Istio's in TPROXY mode, while its proxy does not run.
    #[test]
    fn a_rule_of_a_transparent_proxy_that_does_not_listen_is_named() {
        let decided = |rules: Vec<FirewallRule>| {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN, POD, "ip_rcv").last_drop().location = Some("nft_do_chain".into());
            let verdict = stream.push(firewall(POD, rules)).settles().verdict();
            (verdict.cause.name(), verdict.confidence, format!("{} {}", verdict.summary, verdict.remediation))
        };
        let proxy = |chain: &str, port| FirewallRule {
            hooks: vec!["PREROUTING".into()],
            exact: false,
            proxy_port: Some(port),
            ..rule(chain, RuleVerdict::Drop)
        };
        for chain in ["ISTIO_TPROXY", "CILIUM_PRE_mangle"] {
            let (cause, confidence, words) = decided(vec![proxy(chain, 15006)]);
            assert_eq!((cause, confidence), ("firewall_drop", Confidence::Proven));
            assert_has(
                &words,
                &[
                    "the kernel found no process that listens on its port 15006 with IP_TRANSPARENT",
                    "ss -ltnp 'sport = :15006'",
                ],
            );
        }
        assert_has(&decided(vec![proxy("p", 0)]).2, &["listens on its port 8080 with"]);
        let other = FirewallRule { hooks: vec!["PREROUTING".into()], exact: false, ..rule("r", RuleVerdict::Drop) };
        let words = decided(vec![proxy("p", 15006), other]).2;
        let chains = ["nft -a list chain inet t p", "nft -a list chain inet t r"];
        assert_has(&words, &["it is one of these", chains[0], chains[1]]);
        assert_lacks(&words, &["IP_TRANSPARENT"]);
    }

    /// As KUBE-FIREWALL, which drops packets with a mark only.
    #[test]
    fn a_rule_that_had_counted_nothing_is_named_last() {
        let counted = |chain: &str, packets| FirewallRule {
            exact: false,
            packets: Some(packets),
            ..rule(chain, RuleVerdict::Drop)
        };
        let mut stream = Stream::new().push(firewall(POD, vec![counted("idle", 0), counted("busy", 7)])).clone();
        let verdict = stream.wait_ms(900).connect().filtered(SYN, POD).gives_up().verdict();
        assert_has(&verdict.summary, &["it is one of these: ", "chain inet t busy; ", "chain inet t idle"]);
        let shown: Vec<_> = verdict.remediation.commands.iter().map(|it| it.run.as_str()).collect();
        assert!(shown[0].ends_with("nft -a list chain inet t busy") && shown[1].ends_with(" idle"), "{shown:?}");
    }

    /// As ufw's: the rules of its chains log the packet and let it pass.
    #[test]
    fn a_policy_is_what_no_rule_accepts() {
        let summary = |policy| {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN, POD, "ip_local_deliver");
            let rule = FirewallRule { policy, ..rule("INPUT", RuleVerdict::Drop) };
            stream.push(firewall(POD, vec![rule])).settles().verdict().summary
        };
        assert_has(&summary(true), &["it is the policy in chain ", ": no rule accepts the packet"]);
        assert_lacks(&summary(false), &["accepts"]);
    }

    /// A full table of connection tracking drops at the same place. The rules or the table tell them apart.
    #[test]
    fn without_the_rules_a_drop_where_tracking_may_drop_is_only_likely() {
        let decided = |tracked| {
            let mut stream = Stream::new().connect().filtered(SYN, NODE).clone();
            let drop = stream.last_drop();
            (drop.location, drop.tracked, drop.stack) =
                (Some("nf_hook_slow".into()), Some(tracked), vec!["__ip_local_out".into()]);
            stream.settles().decided()
        };
        assert_eq!(decided(Tracked::No), ("firewall_drop", Confidence::Likely));
        assert_eq!(decided(Tracked::Yes), ("firewall_drop", Confidence::Proven));
    }

    /// Seen on 6.12: the backend of an earlier connection from the same port was gone. No rules were read.
    #[test]
    fn a_drop_on_the_way_to_a_service_may_be_by_ipvs() {
        let verdict = |dst: &str, flags: TcpFlags, hooks: &[Hook], table: Option<u16>, rules: bool| {
            let mut stream = Stream::to(dst);
            let attached = hooks.iter().map(|hook| hook.name().to_owned()).collect();
            stream.push(ObservationKind::HooksAttached(HooksAttached { hooks: attached }));
            table.into_iter().for_each(|port| _ = stream.node_port(ProxyMode::Ipvs, port, &["10.88.0.9:80"]));
            stream.push(ObservationKind::Pods(Pods {
                pods: vec![Pod { addrs: vec![address("10.88.0.2")], netns: Some(POD), ..Pod::default() }],
            }));
            stream.connect().filtered_at(flags, NODE, "ip_local_deliver");
            (stream.last_drop().location, stream.last_drop().tracked) =
                (Some("nf_hook_slow".into()), Some(Tracked::Yes));
            if rules {
                stream.push(firewall(NODE, vec![rule("INPUT", RuleVerdict::Drop)]));
            }
            stream.gives_up().verdict()
        };
        let (service, pod, loaded) = ("10.96.0.9:80", "10.88.0.2:8080", &[Hook::IpvsLeave][..]);
        for (flags, dst, hooks, table) in
            [(SYN, service, loaded, None), (SYN, service, &[], Some(30_001)), (SYN_ACK, pod, loaded, None)]
        {
            let verdict = verdict(dst, flags, hooks, table, false);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("firewall_drop", Confidence::Likely), "{flags:?}");
            assert_starts(&verdict.summary, "netfilter at INPUT on the node drops");
            assert_has(&verdict.summary, &["or IPVS did: for a connection to a backend that is gone"]);
            assert_has(&verdict.remediation, &["If it is neither: Allow ", "ipvsadm -Ln --stats", "ipvsadm -Lnc"]);
        }
        for (flags, dst, hooks, table, rules) in [
            (SYN, service, &[][..], None, false),
            (SYN, pod, loaded, None, false),
            (SYN_ACK, pod, loaded, Some(30_001), false),
            (SYN, service, loaded, None, true),
        ] {
            let verdict = verdict(dst, flags, hooks, table, rules);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("firewall_drop", Confidence::Proven), "{flags:?}");
            assert_lacks(&verdict.summary, &["IPVS"]);
        }
    }

    /// "INPUT" is the hook, and an nftables chain at that hook has any name.
    #[test]
    fn the_fix_names_the_chain_if_it_is_known() {
        let fix = |rules: Option<Vec<FirewallRule>>| {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN, POD, "ip_local_deliver").last_drop().location =
                Some("nft_do_chain".into());
            rules.into_iter().for_each(|rules| _ = stream.push(firewall(POD, rules)));
            stream.gives_up().verdict().remediation.text
        };
        let [ingress, other] = ["ingress", "other"].map(|chain| FirewallRule {
            hooks: vec!["INPUT".into()],
            handle: Some(2),
            exact: false,
            ..rule(chain, RuleVerdict::Drop)
        });
        let policy = FirewallRule { policy: true, handle: None, ..ingress.clone() };
        let (what, at_hook) = ("Allow 10.88.0.1 -> port 8080", " at INPUT before the rule that drops it");
        for (rules, place) in [
            (Some(vec![ingress.clone()]), " in chain inet t ingress, before the rule with handle 2"),
            (Some(vec![policy]), " in chain inet t ingress"),
            (
                Some(vec![ingress.clone(), FirewallRule { handle: Some(3), ..ingress.clone() }]),
                " in chain inet t ingress",
            ),
            (Some(vec![ingress, other]), at_hook),
            (None, at_hook),
        ] {
            assert_eq!(fix(rules), format!("{what}{place}"));
        }
    }

    /// Connection tracking translates before the rules of INPUT and FORWARD.
    #[test]
    fn the_port_to_allow_is_the_one_behind_a_translation() {
        let mut stream = Stream::new();
        stream.connect().drop_with(SYN, POD, |drop| {
            drop.reason = Some("NETFILTER_DROP".into());
            drop.flow.dst.set_port(15006);
        });
        assert_has(&stream.settles().verdict().remediation, &["Allow 10.88.0.1 -> port 15006"]);
    }

    #[test]
    fn a_dropped_fin_of_an_answered_attempt_is_no_failure() {
        let mut stream = Stream::new().connect().established().closes((100, 101, 200)).clone();
        assert!(stream.filtered(TcpFlags(0x11), POD).causes().is_empty());
    }

    /// A rule drops the first SYN.
    fn first_dropped(probed: fn(&mut Stream) -> &mut Stream) -> Stream {
        let mut stream = Stream::new();
        let rules = firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)]);
        probed(&mut stream).connect().filtered(SYN, POD).push(rules).settles();
        stream
    }

    #[test]
    fn a_late_rst_turns_the_drop_into_a_reject_and_is_no_success() {
        let mut late = first_dropped(|stream| stream);
        assert_eq!(late.wait_ms(300).tick().reset_received(TcpState::SynSent, 0).causes(), ["firewall_reject"]);
        let mut connected = first_dropped(Stream::tcp_readiness);
        connected.wait_ms(300).syn_again().established().resets((0, 1, 0)).settles();
        assert!(connected.outcomes().is_empty(), "the probe may have succeeded: {:?}", connected.outcomes());
        assert_eq!(connected.attempt_outcomes(), [None]);
    }

    /// The rules were read late: tracer decided the verdict without them, and revised it.
    #[test]
    fn a_revised_verdict_of_an_attempt_that_gets_through_is_no_failure() {
        let mut stream = Stream::new().connect().filtered(SYN, POD).settles().wait_ms(1010).tick().clone();
        stream.push(firewall(POD, vec![rule("cali-fw-cali1234", RuleVerdict::Drop)]));
        stream.syn_again().established().closes((100, 101, 200)).tick();
        assert_eq!(stream.causes(), ["network_policy_drop"]);
        assert_eq!(stream.outcomes(), [Outcome::Noise]);
    }

    #[test]
    fn a_revised_verdict_stays_a_failure_if_the_kubelet_timed_out() {
        let mut stream = Stream::new();
        stream.grpc_readiness(5).connect().filtered(SYN, POD).settles().wait_ms(1010).tick();
        stream.push(firewall(POD, vec![rule("cali-fw-cali1234", RuleVerdict::Drop)]));
        stream.kubelet(ProbeOutput::Timeout).syn_again().established().closes((100, 101, 200)).tick();
        assert!(stream.outcomes().iter().all(|it| *it == Outcome::Failure), "{:?}", stream.outcomes());
        assert_eq!(stream.causes().last(), Some(&"network_policy_drop"));
    }

    #[test]
    fn a_success_becomes_a_failure_if_the_kubelet_timed_out() {
        let mut stream = first_dropped(Stream::http_readiness);
        stream.wait_ms(300).syn_again().established().closes((100, 101, 200)).settles();
        assert_eq!(stream.outcomes(), [Outcome::Noise]);
        stream.wait_ms(50).kubelet(ProbeOutput::Timeout).wait_ms(50).tick();
        assert_eq!(stream.outcomes().last(), Some(&Outcome::Failure), "{:?}", stream.outcomes());
    }

    /// The kubelet's connect goes on after its probe has timed out. The kubelet closes the late connection.
    #[test]
    fn a_connect_after_the_timeout_stays_a_failure() {
        let late = |probed: bool, after_ms: u64, bytes: (u64, u64, u64)| {
            let mut stream = first_dropped(if probed { Stream::http_readiness } else { |stream| stream });
            stream.wait_ms(after_ms).syn_again().established().closes(bytes).wait_ms(50).tick().outcomes()
        };
        let (nothing, answered) = ((0, 1, 0), (100, 101, 200));
        assert_eq!(late(true, 1_025, nothing), [Outcome::Failure]);
        assert_eq!(late(true, 900, nothing), [Outcome::Failure], "within timeoutSeconds 1, but without a request");
        assert_eq!(late(true, 900, answered), [Outcome::Noise]);
        assert_eq!(late(false, 1_025, nothing), [Outcome::Noise], "the timeout is not known");
    }

    #[test]
    fn an_attempt_that_the_kubelet_failed_stays_a_failure() {
        let mut stream = Stream::new().http_readiness().connect().filtered(SYN, POD).settles().clone();
        stream.wait_ms(900).kubelet(ProbeOutput::Timeout).syn_again().established();
        stream.closes((0, 1, 0)).wait_ms(50).tick();
        let outcomes = stream.outcomes();
        assert!(!outcomes.is_empty() && outcomes.iter().all(|it| *it == Outcome::Failure), "{outcomes:?}");
    }

    #[test]
    fn a_reset_after_a_later_syn_got_through_is_mid_stream_rst() {
        let mut stream = Stream::new().connect().filtered(SYN, POD).settles().clone();
        stream.wait_ms(1000).syn_again().established();
        stream.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0x10), false, Some("app"));
        stream.state(TcpState::Established, TcpState::Close, 104, (100, 101, 0));
        assert_eq!(stream.causes(), ["mid_stream_rst"]);
    }

    #[test]
    fn the_fix_allows_the_direction_of_the_dropped_packet() {
        let fix = |flags| Stream::new().connect().filtered(flags, NODE).gives_up().verdict().remediation.clone();
        assert_starts(&fix(SYN), "Allow 10.88.0.1 -> port 8080 before");
        assert_starts(&fix(SYN_ACK), "Allow the answers of 10.88.0.2:8080 to 10.88.0.1 ");
    }

    #[test]
    fn a_state_is_suggested_only_where_connections_are_tracked() {
        let by_state = |place: &str| {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN_ACK, NODE, place);
            stream.gives_up().verdict().remediation.to_string().contains("ct state established")
        };
        assert!(by_state("ip_local_deliver"));
        assert!(!by_state("__netif_receive_skb_core") && !by_state("__dev_queue_xmit") && !by_state("br_handle_frame"));
    }

    /// A chain such as iptables' raw comes before connection tracking, which has not seen the packet there.
    #[test]
    fn no_state_is_suggested_for_a_chain_before_connection_tracking() {
        let by_state = |priority: Option<i32>, tracked: Option<Tracked>| {
            let hooks = vec!["PREROUTING".into()];
            let dropped = FirewallRule { priority, hooks, ..rule("PREROUTING", RuleVerdict::Drop) };
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN_ACK, NODE, "ip_rcv").last_drop().tracked = tracked;
            let verdict = stream.push(firewall(NODE, vec![dropped])).gives_up().last_verdict();
            verdict.remediation.to_string().contains("ct state established")
        };
        assert!(!by_state(Some(-300), None) && !by_state(None, Some(Tracked::No)));
        assert!(by_state(Some(-150), None) && by_state(Some(-150), Some(Tracked::Yes)));
    }

    /// On a node, ufw reloads its rules. In a pod's namespace no ufw runs that could change them.
    #[test]
    fn a_drop_by_ufw_on_a_node_is_fixed_with_ufw() {
        let fix = |netns, chain: &str| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).connect().filtered_at(SYN, netns, "ip_local_deliver");
            stream.push(firewall(netns, vec![rule(chain, RuleVerdict::Drop)])).settles();
            stream.verdict().remediation
        };
        let ufw = fix(NODE, "ufw-user-input");
        assert!(ufw.commands[0].run == "ufw prepend allow proto tcp from 10.88.0.1 to any port 8080", "{ufw}");
        assert_ends(&ufw, "; nft -a list chain inet t ufw-user-input");
        assert_starts(&fix(POD, "ufw-user-input"), "Allow 10.88.0.1 -> port 8080 in chain inet t ufw-user-input");
        assert_starts(&fix(NODE, "ufw-before-input"), "Allow 10.88.0.1 -> port 8080 in chain inet t ufw-before-input");
    }

    /// A list of pods does not name the namespaces. A stack that takes the SYN as its own shows the pod's namespace.
    #[test]
    fn the_namespace_is_named_by_its_pod_and_entered_by_a_command() {
        let decided = |place: &str| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().filtered_at(SYN, POD, place);
            let verdict = stream.gives_up().verdict();
            (verdict.summary, verdict.remediation)
        };
        let (summary, fix) = decided("ip_local_deliver");
        assert_has(&summary, &["at INPUT in pod default/web drops"]);
        let command = "nsenter --net=$(find -L /run/netns/* /proc/*/ns/net -inum 2 -print -quit) nft list ruleset; ";
        assert_has(&fix, &[command]);
        let (on_the_way, _) = decided("ip_forward");
        assert_has(&on_the_way, &["at FORWARD in network namespace 2 drops"]);
    }

    /// The rule is removed, the request is sent again and acknowledged, and the application does not answer.
    #[test]
    fn a_drop_of_a_segment_that_arrives_later_is_not_the_cause() {
        let causes = |drops: fn(&mut Stream), again: bool, acknowledged: u64| {
            let mut stream = Stream::new().connect().established().clone();
            drops(&mut stream);
            if again {
                stream.wait_ms(200).sent_again(100, false);
            }
            stream.wait_ms(1000).closes((200, acknowledged, 0)).causes()
        };
        let request = |stream: &mut Stream| _ = stream.filtered(TcpFlags(0x18), POD);
        assert_eq!(causes(request, true, 101), ["slow_response"]);
        assert_eq!(causes(request, true, 1), ["firewall_drop"]);
        let acknowledgement = |stream: &mut Stream| _ = stream.drop_back(TcpFlags(0x10), "NETFILTER_DROP");
        assert_eq!(causes(acknowledgement, true, 101), ["slow_response"], "it was acknowledged at the second try");
        let answer = |stream: &mut Stream| _ = stream.drop_back(TcpFlags(0x18), "NETFILTER_DROP");
        assert_eq!(causes(answer, false, 101), ["firewall_drop"]);
        assert_eq!(causes(acknowledgement, false, 101), ["firewall_drop"], "an answer's first segment has no PSH");
    }

    /// The rule is removed, and the next SYN gets through. The target acknowledges the request and sends no answer.
    #[test]
    fn a_silence_after_a_later_syn_is_a_slow_response() {
        let decided = |silent_ms: u64| {
            let mut stream = Stream::new().connect().filtered(SYN, POD).settles().clone();
            stream.wait_ms(1_000).syn_again().established().wait_ms(silent_ms);
            stream.closes((100, 101, 0)).wait_ms(50).tick().causes()
        };
        assert_eq!(decided(4_000), ["slow_response"]);
        assert_eq!(decided(500), ["firewall_drop"], "most of the time was over before");
    }

    /// The rule came while the server worked on its answer. The client of TLS closes with close_notify, so its socket was
    /// not quiet.
    #[test]
    fn the_answer_after_a_tls_handshake_is_dropped() {
        let decided = |lost_ms: &[u64], sent_ms: &[u64], ended_ms: u64, reported: bool| {
            let mut stream = Stream::new();
            stream.https_readiness().connect().established().wait_ms(2).answer(AnswerKind::Tls, None);
            let mut now = 2;
            let mut times: Vec<u64> = [lost_ms, sent_ms].concat();
            times.sort_unstable();
            times.dedup();
            for at in times {
                stream.wait_ms(at - now);
                now = at;
                if sent_ms.contains(&at) {
                    stream.sent_again(90, true);
                }
                if lost_ms.contains(&at) {
                    stream.drop_back(TcpFlags(0x18), "NETFILTER_DROP");
                }
            }
            stream.wait_ms(ended_ms - now);
            stream.own(|it| _ = it.closes_quiet((424, 400, 845), 16_000));
            if reported {
                stream.kubelet(ProbeOutput::Timeout);
            }
            stream.settles().all_decided().pop()
        };
        let likely = Some(("firewall_drop", Confidence::Likely));
        assert_eq!(decided(&[500, 700], &[700], 1_001, false), likely);
        assert_eq!(decided(&[900], &[], 1_001, false), likely, "its retransmission was not due");
        assert_eq!(decided(&[500, 700], &[700], 1_001, true), Some(("firewall_drop", Confidence::Proven)));
        let slow = Some(("slow_response", Confidence::Likely));
        assert_eq!(decided(&[5], &[205], 1_001, true), slow, "a part of the handshake, which arrived later");
        assert_eq!(decided(&[5, 205], &[205, 605], 1_001, true), slow, "the second retransmission arrived");
        assert_eq!(decided(&[500, 700], &[700], 980, false), None, "it may have got its answer just in time");
        assert_eq!(decided(&[500, 700, 1_100], &[700, 1_100], 1_300, false), None, "the prober was late itself");
    }

    /// IPVS drops so if the destination of its entry is gone. A module or a program at a hook may also drop.
    #[test]
    fn if_no_rule_that_was_read_fits_the_summary_blames_no_rule() {
        let reported =
            |rules| Stream::new().connect().filtered(SYN, NODE).push(firewall(NODE, rules)).gives_up().last_verdict();
        let nobody = reported(vec![]);
        assert_eq!((nobody.cause.name(), nobody.confidence), ("firewall_drop", Confidence::Likely));
        assert_starts(&nobody.summary, "netfilter on the node");
        assert_has(&nobody.summary, &["no rule that was read there fits"]);
        assert_lacks(&nobody.remediation, &["Allow "]);
        let rule = reported(vec![rule("INPUT", RuleVerdict::Drop)]);
        assert_eq!(rule.confidence, Confidence::Proven);
        assert_starts(&rule.summary, "a netfilter rule on the node");
    }

    /// fail2ban's set elements have timeouts. Only a rule frees a packet in that function.
    #[test]
    fn a_packet_that_was_freed_in_a_chain_was_dropped_by_a_rule_that_is_gone() {
        for place in ["ip_local_deliver", "__ip_local_out", "ip_output"] {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN, NODE, place).last_drop().location = Some("nft_do_chain".into());
            let verdict = stream.wait_ms(5).tick().push(firewall(NODE, vec![])).gives_up().last_verdict();
            assert_eq!((verdict.cause.name(), verdict.confidence), ("firewall_drop", Confidence::Likely));
            assert_starts(&verdict.summary, "a netfilter rule at ");
            assert_has(&verdict.summary, &["an nftables rule did it, and none that was read there fits"]);
            assert_has(&verdict.remediation, &["fail2ban", "nft list ruleset"]);
        }
    }

    #[test]
    fn a_drop_in_the_bridge_family_that_no_rule_fits_may_be_by_ebtables() {
        let mut stream = Stream::new();
        stream.connect().filtered_at(SYN, NODE, "br_handle_frame");
        let verdict = stream.push(firewall(NODE, vec![])).gives_up().last_verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("firewall_drop", Confidence::Likely));
        assert_has(&verdict.summary, &["in the bridge family", "ebtables-legacy, which tracer does not read"]);
        assert_has(&verdict.remediation, &["ebtables-legacy -L --Lc"]);
        assert_lacks(&verdict.remediation, &["ipvsadm", "conntrack"]);
    }

    /// The mark that a rule sets leads to a table that refuses the packet. Other things at that hook drop, too.
    #[test]
    fn a_drop_at_output_that_no_rule_fits_may_be_by_a_route() {
        let decided = |place: &str, rules: Vec<FirewallRule>| {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN, NODE, place);
            stream.wait_ms(5).tick().push(firewall(NODE, rules)).gives_up().last_verdict()
        };
        let verdict = decided("__ip_local_out", vec![]);
        assert_eq!(verdict.cause.name(), "unexplained");
        assert_has(&verdict.summary, &["NETFILTER_DROP", "at OUTPUT", "no rule that was read there fits", "ip rule"]);
        assert_has(&verdict.remediation, &["ip rule; ", "meta mark"]);
        assert_eq!(decided("ip_local_deliver", vec![]).cause.name(), "firewall_drop");
        assert_eq!(decided("__ip_local_out", vec![rule("OUTPUT", RuleVerdict::Drop)]).cause.name(), "firewall_drop");
    }

    /// The kernel looks up the route again after an address translation, too. A rule with an unknown condition that counted
    /// nothing did not drop the packet.
    #[test]
    fn a_translated_packet_that_its_new_route_refuses_is_not_a_rules() {
        let decided = |to: &str, backend, packets| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.connect().filtered_at(SYN, NODE, "__ip_local_out").last_drop().flow.dst = address(to);
            let rule = FirewallRule { exact: false, packets, backend, ..rule("KUBE-FIREWALL", RuleVerdict::Drop) };
            stream.wait_ms(5).tick().push(firewall(NODE, vec![rule])).gives_up().last_verdict()
        };
        for backend in [Backend::Nftables, Backend::IptablesLegacy] {
            let other = decided("10.66.0.5:80", backend, Some(0));
            assert_eq!(other.cause.name(), "unexplained");
            assert_has(&other.summary, &["an address translation had sent it; no rule that was read there fits"]);
            assert_has(&other.remediation, &["ip route get 10.66.0.5 from 10.88.0.1"]);
        }
        let legacy = |to, packets| decided(to, Backend::IptablesLegacy, packets).cause.name();
        assert_eq!(legacy("10.66.0.5:80", Some(1)), "firewall_drop");
        assert_eq!(legacy("10.96.0.9:8080", Some(0)), "firewall_drop", "the route stays");
        // Until the rules are read, the route may have refused it.
        let unread = |to: &str| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.connect().filtered_at(SYN, NODE, "__ip_local_out").last_drop().flow.dst = address(to);
            stream.gives_up().last_decided()
        };
        assert_eq!(unread("10.66.0.5:80"), ("firewall_drop", Confidence::Likely));
        assert_eq!(unread("10.96.0.9:8080"), ("firewall_drop", Confidence::Proven));
    }

    /// The rule has a condition that tracer does not understand: a mark, a set or a device.
    #[test]
    fn a_rule_that_may_not_match_the_packet_is_only_probable() {
        let reported = |place: &str, exact: bool, packets: &[Option<u64>]| {
            let mut stream = Stream::new();
            let read = |packets: &Option<u64>| {
                firewall(NODE, vec![FirewallRule { exact, packets: *packets, ..rule("INPUT", RuleVerdict::Drop) }])
            };
            let (last, first) = packets.split_last().expect("a reading");
            first.iter().for_each(|packets| _ = stream.push(read(packets)));
            stream.connect().drop_in(SYN, "NETFILTER_DROP", NODE, place);
            let verdict = stream.push(read(last)).gives_up().last_verdict();
            (
                verdict.confidence,
                verdict.summary.ends_with("; it is probably the rule with handle 4 in chain inet t INPUT"),
            )
        };
        let (proven, probable) = ((Confidence::Proven, false), (Confidence::Likely, true));
        assert_eq!(reported("nf_hook_slow", false, &[None]), probable);
        assert_eq!(reported("nf_hook_slow", false, &[Some(7)]), probable);
        assert_eq!(reported("nf_hook_slow", false, &[Some(7), Some(8)]), proven, "its counter rose");
        assert_eq!(reported("nf_hook_slow", true, &[None]), proven);
        assert_eq!(reported("nft_do_chain", false, &[None]), proven);
    }

    /// A full ring loses any event of the node.
    #[test]
    fn a_drop_that_was_seen_is_the_cause_although_other_events_were_lost() {
        let decided = |lost: u64| {
            let mut stream = Stream::new().connect().clone();
            if lost > 0 {
                stream.lost(lost);
            }
            stream.filtered(SYN, NODE).push(firewall(NODE, vec![rule("OUTPUT", RuleVerdict::Drop)])).wait_ms(1_000);
            stream.state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0)).settles();
            let verdict = stream.last_verdict();
            (verdict.cause.name(), verdict.confidence, verdict.lost_events)
        };
        assert_eq!(decided(0), ("firewall_drop", Confidence::Proven, 0));
        assert_eq!(decided(2), ("firewall_drop", Confidence::Likely, 2));
    }

    /// Connection tracking drops a SYN if another connection took its translated source port.
    #[test]
    fn a_source_port_that_could_not_be_translated_is_no_rules() {
        let decided = |port: u16, rules: Vec<FirewallRule>| {
            let mut stream = Stream::new();
            stream.connect().filtered_at(SYN, NODE, "ip_output").last_drop().flow.src.set_port(port);
            stream.wait_ms(5).tick().push(firewall(NODE, rules)).gives_up().last_verdict()
        };
        let verdict = decided(5_000, vec![]);
        assert_eq!(verdict.cause.name(), "unexplained");
        assert_has(&verdict.summary, &["at POSTROUTING", "the source NAT had no free port"]);
        assert_has(&verdict.remediation, &["insert_failed", "conntrack -S"]);
        let deny = FirewallRule { hooks: vec!["POSTROUTING".into()], ..rule("out", RuleVerdict::Drop) };
        assert_eq!(decided(5_000, vec![deny]).cause.name(), "firewall_drop");
    }

    /// As `limit rate over 5/second drop`.
    #[test]
    fn a_rule_that_limits_fails_only_some_attempts() {
        let decided = |limits: &[Option<Limit>]| {
            let limited = |limit: &Option<Limit>| FirewallRule {
                exact: false,
                limit: *limit,
                ..rule("INPUT", RuleVerdict::Drop)
            };
            let mut stream = Stream::new();
            stream.connect().filtered(SYN, POD).push(firewall(POD, limits.iter().map(limited).collect()));
            let verdict = stream.gives_up().verdict();
            assert_eq!(verdict.cause.name(), "firewall_drop");
            verdict
        };
        for (limit, words, fix) in [
            (Limit::Rate, "a limit of the rate decides", "Raise the rate that the limit allows"),
            (Limit::Connections, "a limit of connections decides", "Raise the number of connections"),
            (Limit::Share, "chance, or a count of packets, decides", "left over from a test of packet loss"),
        ] {
            let limited = decided(&[Some(limit)]);
            assert_has(&limited.summary, &[words, "only some attempts fail"]);
            assert_has(&limited.remediation, &[fix, "probes pass before it. Otherwise: Allow "]);
        }
        for others in [&[None][..], &[Some(Limit::Rate), None]] {
            assert_lacks(&decided(others).summary, &["only some attempts"]);
        }
    }

    /// A connection from the same port to the same port of the pod's own loopback.
    #[test]
    fn a_drop_on_the_loopback_of_another_namespace_is_not_the_attempts() {
        let cause = |netns| {
            let mut stream = Stream::to("127.0.0.1:8080");
            stream.connect().filtered(SYN, netns).push(firewall(netns, vec![rule("INPUT", RuleVerdict::Drop)]));
            stream.gives_up().verdict().cause.name()
        };
        assert_eq!([NODE, POD].map(cause), ["firewall_drop", "unexplained"]);
    }
}
