use super::*;
use crate::sink::tests::{culprit, recorded, verdict, verdict_body};
use tracer_model::event::{KubeletResult, MissingHook};
use tracer_model::record::{Body, Cause, Confidence, Culprit, Endpoint, K8s, KubeletOutcome, VerdictBody};

const NO_SCREEN: Screen = Screen { colour: false, columns: None };

fn text(body: Body) -> String {
    Pretty::default().text(&recorded(7, body), 0, NO_SCREEN)
}

fn start_without(missing: &[Hook]) -> StartBody {
    let missing = missing.iter().map(|hook| MissingHook {
        hook: hook.name().into(),
        reason: "no such program type".into(),
        lost: "something".into(),
    });
    StartBody {
        version: "0.1.0".into(),
        kernel: "6.12.0".into(),
        hooks: Vec::new(),
        missing_hooks: missing.collect(),
        prober_hooks: None,
        sources: Vec::new(),
        probers: Vec::new(),
        prober_pids: Vec::new(),
        pods: 1,
    }
}

#[test]
fn missing_hooks_are_one_line_with_the_causes_that_lack_a_proof() {
    let last =
        |missing: &[Hook]| text(Body::Start(start_without(missing))).lines().last().unwrap_or_default().to_owned();
    assert_eq!(
        last(&[Hook::IpvsNatXmit, Hook::IpvsLeave, Hook::Icmp6Send, Hook::TcpConnRequest]),
        "4 of 4 hooks missing: cannot prove IPVS, accept-queue and ICMPv6 causes; details: tracer doctor"
    );
    assert_eq!(last(&[Hook::PutNet]), "1 of 1 hook missing; details: tracer doctor");
}

fn stop(attempts: u64, lost_events: u64) -> Record {
    let body = StopBody { attempts, lost_events, reason: "signal".into(), ..StopBody::default() };
    Record { time_boot_ns: 313_000_000_000, ..recorded(7, Body::Stop(body)) }
}

/// The summary of these verdicts, without its first line. Their `seq` counts from 0.
fn summary(verdicts: Vec<VerdictBody>) -> String {
    let mut pretty = Pretty::default();
    for (seq, body) in (0..).zip(verdicts) {
        pretty.text(&recorded(seq, Body::Verdict(body.into())), 0, NO_SCREEN);
    }
    let text = pretty.text(&stop(9, 0), 9, NO_SCREEN);
    text.trim_start().split_once('\n').unwrap().1.to_owned()
}

fn in_pod(mut body: VerdictBody, name: &str) -> VerdictBody {
    body.k8s = Some(K8s { namespace: Some("shop".into()), pod_name: Some(name.into()), ..K8s::default() });
    body
}

#[test]
fn culprit_and_doubts_are_printed() {
    let mut body = verdict_body(Cause::LoopbackDown);
    body.culprit = Some(culprit());
    body.src = Some(Endpoint { addr: "10.0.0.1".parse().unwrap(), port: Some(36704) });
    body.revises = Some(3);
    body.verdict.lost_events = 2;
    body.verdict.missing_hooks = vec!["kfree_skb".into()];
    let text = text(Body::Verdict(body.into()));
    for line in [
        ":80/ 10.0.0.1:36704 -> 10.0.0.9:80  (proven, replaces #3)  #7\n",
        "  culprit  loopback (pid 5029, /opt/cni/bin/loopback): link down, entered through /proc/5029/ns/net; child of crio (1)\n",
        "  doubt    2 events were lost meanwhile\n  doubt    missing hooks: kfree_skb\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

/// Verdicts of one run, each with its number.
fn in_turn() -> impl FnMut(u64, &VerdictBody) -> String {
    let mut pretty = Pretty::default();
    move |seq, body| {
        let record = recorded(seq, Body::Verdict(body.clone().into()));
        pretty.text(&record, 0, NO_SCREEN)
    }
}

/// The kubelet's log line comes shortly after most verdicts: printing the same block twice would hide the next verdict.
#[test]
fn a_verdict_that_amends_the_one_above_prints_only_its_new_lines() {
    let mut next = in_turn();
    let mut body = verdict_body(Cause::LoopbackDown);
    body.culprit = Some(culprit());
    assert!(next(3, &body).contains("\n  cause  "));
    body.revises = Some(3);
    body.kubelet =
        Some(KubeletOutcome { result: KubeletResult::Failure, output: Some("EOF".into()), event_count: None });
    let amended = next(4, &body);
    let (head, rest) = amended.split_once('\n').unwrap();
    assert!(head.ends_with("(proven, amends #3)  #4") && rest == "  kubelet  EOF\n", "{amended}");
    body.revises = Some(4);
    body.culprit = None;
    let taken_back = next(5, &body);
    assert!(taken_back.contains("replaces #4") && taken_back.contains("\n  cause  "), "{taken_back}");
    body.verdict.cause = Cause::Unexplained;
    assert!(next(6, &body).contains("replaces #4"), "another cause");
    body.revises = Some(1);
    assert!(next(7, &body).contains("\n  cause  "), "what it amends was not printed");
}

#[test]
fn a_verdict_that_repeats_the_one_above_is_one_line() {
    let mut next = in_turn();
    let mut body = verdict_body(Cause::SlowResponse);
    body.verdict.summary = "no answer within 1.2 s".into();
    assert!(next(3, &body).contains("\n  evidence "));
    let again = next(4, &body);
    assert!(again.ends_with("(proven, again: as #3)  #4\n") && again.lines().count() == 1, "{again}");
    body.verdict.summary = "no answer within 10 s".into();
    let numbers = next(5, &body);
    assert!(numbers.ends_with("(proven, again: as #3)  #5\n  cause    no answer within 10 s\n"), "{numbers}");
    body.verdict.remediation = "look elsewhere".into();
    assert!(next(6, &body).ends_with("  #6\n  fix      look elsewhere\n"));
    let whole = |text: String| text.contains("\n  evidence ") && !text.contains("again");
    body.verdict.confidence = Confidence::Likely;
    assert!(whole(next(7, &body)), "another confidence");
    assert!(whole(next(8, &in_pod(body.clone(), "other"))), "another pod");
    body.verdict.summary = "no answer, and the pod is paused".into();
    assert!(whole(next(9, &body)), "other words");
    body.culprit = Some(culprit());
    assert!(whole(next(10, &body)), "somebody did it");
    body.culprit = None;
    body.verdict.evidence[0].hook = "kfree_skb".into();
    assert!(whole(next(11, &body)), "seen by another hook");
}

#[test]
fn escape_sequences_in_names_are_removed() {
    let hostile = "a\u{1b}[2Jb\nc\u{202e}";
    let mut body = in_pod(verdict_body(Cause::Unexplained), hostile);
    body.verdict.summary = hostile.into();
    body.verdict.remediation = hostile.into();
    body.verdict.missing_hooks = vec![hostile.into()];
    body.culprit = Some(Culprit { comm: hostile.into(), exe: Some(hostile.into()), ..culprit() });
    let loss = LossBody { where_: hostile.into(), count: 1, from_boot_ns: 0, to_boot_ns: 0 };
    let mut pretty = Pretty::default();
    let records = [recorded(7, Body::Verdict(body.into())), recorded(7, Body::Loss(loss)), stop(1, 0)];
    let text: String = records.iter().map(|record| pretty.text(record, 1, NO_SCREEN)).collect();
    assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("\nc"), "{text}");
    assert!(text.contains("a\u{fffd}[2Jb\u{fffd}c\u{fffd}"), "{text}");
}

#[test]
fn a_stronger_confidence_has_a_stronger_colour() {
    let colours = |confidence| {
        let mut body = verdict_body(Cause::ConnectionRefused);
        body.verdict.confidence = confidence;
        let screen = Screen { colour: true, columns: None };
        Pretty::default().text(&recorded(7, Body::Verdict(body.into())), 0, screen)
    };
    for (confidence, code) in [(Confidence::Proven, "1;31"), (Confidence::Likely, "33"), (Confidence::Possible, "36")] {
        let text = colours(confidence);
        assert!(text.contains(&format!("\u{1b}[{code}mconnection_refused\u{1b}[0m")), "{text}");
    }
    assert!(!text(verdict(Cause::ConnectionRefused)).contains('\u{1b}'));
}

#[test]
fn the_summary_of_a_cause_has_its_counts_pods_and_what_is_missing() {
    let mut unexplained = verdict_body(Cause::Unexplained);
    unexplained.verdict.missing_hooks = vec!["ip_vs_leave".into()];
    unexplained.verdict.lost_events = 2;
    let mut revision = verdict_body(Cause::AppStatusFailure);
    revision.revises = Some(0);
    let pods = (0..9).map(|n| in_pod(verdict_body(Cause::LoopbackDown), &format!("p{n}"))).collect();
    let hit = "\n  hit      shop/p0 (1), shop/p1 (1), shop/p2 (1), shop/p3 (1), shop/p4 (1), and 4 more\n";
    for (verdicts, head, part) in [
        (vec![unexplained.clone()], "1  unexplained  ", "\n  missing  hooks: ip_vs_leave; 2 events that were lost\n"),
        (vec![unexplained, revision], "1  app_status_failure  1 proven  03:04:05\n", "\n  hit      shop/cart\n"),
        (pods, "9  loopback_down  9 proven  03:04:05\n", hit),
    ] {
        let text = summary(verdicts);
        assert!(text.starts_with(head) && text.contains(part), "{text}");
        assert_eq!(text.matches("  hit  ").count(), 1, "a revised verdict counts once: {text}");
    }
}

#[test]
fn a_summary_without_verdicts_says_why_there_are_none() {
    let end = |attempts, failed, lost| Pretty::default().text(&stop(attempts, lost), failed, NO_SCREEN);
    assert!(end(220, 0, 0).ends_with("\nhealthy: 220 attempts, none failed\n"));
    assert!(end(1, 0, 2).ends_with("\n1 attempt, none seen to fail; but 2 events were lost\n"));
    assert!(end(0, 0, 0).contains("nothing is known of this node"));
    assert!(end(9, 3, 0).ends_with("\nno verdict; of 9 attempts in all 3 failed\n"));
}

#[test]
fn the_summary_says_how_many_failures_the_filter_hid() {
    let end = |namespace: &str, failed| {
        let filter = Filter { namespace: Some(namespace.into()), ..Filter::default() };
        let mut pretty = Pretty::new(filter, false);
        pretty.count(&verdict(Cause::LoopbackDown));
        pretty.text(&stop(9, 0), failed, NO_SCREEN)
    };
    assert!(end("nosuch", 3).ends_with("\n0 of 3 failures shown: no pod matches `-n nosuch`\n"));
    assert!(end("shop", 3).ends_with("\n0 of 3 failures shown: none matches `-n shop`\n"));
    assert!(end("shop", 0).ends_with("\nhealthy: 9 attempts, none failed\n"));
    assert!(end("nosuch", 0).ends_with("\nhealthy: 9 attempts, none failed\nno pod matches `-n nosuch`\n"));
}

#[test]
fn ports_of_a_healthy_node_are_printed_only_with_verbose() {
    let pressure = |node_ports, verbose| {
        let ports = PortsBody {
            usable: Some(14_116),
            time_wait: Some(101),
            node_ports_in_range: node_ports,
            ..PortsBody::default()
        };
        let body = NodeBody {
            event: "port_pressure".into(),
            summary: "ephemeral ports".into(),
            culprit: None,
            netns: None,
            link: None,
            ports: Some(ports),
            node_ports: None,
        };
        Pretty::new(Filter::default(), verbose).text(&recorded(7, Body::Node(body.into())), 0, NO_SCREEN)
    };
    assert_eq!(pressure(None, false), "");
    assert!(pressure(None, true).contains("ephemeral ports"));
    assert!(pressure(Some(1), false).contains("ephemeral ports"));
}

#[test]
fn the_summary_says_whether_the_other_fixes_differ() {
    let with = |text: &str| {
        let mut body = verdict_body(Cause::SlowResponse);
        body.verdict.remediation.text = text.into();
        body
    };
    let rest = |other| summary(vec![with("Raise the limit of a."), with(other)]);
    let (same, another) = (rest("Raise the limit of b."), rest("Make it faster."));
    assert!(same.contains("(and 1 more, with other names and numbers: see the verdicts)"), "{same}");
    assert!(another.contains("(and 1 more, also another fix: see the verdicts)"), "{another}");
}
