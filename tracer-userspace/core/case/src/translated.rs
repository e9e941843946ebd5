//! A NAT on the way of the attempt: behind it, packets have another source address, or another target.

use crate::Case;
use crate::finding::Finding;
use crate::services::target_service;
use tracer_model::event::{Flow, Observation, ObservationKind, PacketDrop, Via};
use tracer_model::record::{Cause, Confidence};

/// Notes the translation. Only ports and one of the addresses tie such a packet to this attempt: the finding is likely at
/// most.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    let decides = |reading: &&Observation| finding.evidence.iter().any(|it| it.time_boot_ns == reading.time_boot_ns);
    let deciding: Vec<_> = case.attempt.observations.iter().filter(decides).map(|it| &it.kind).collect();
    if let Some(client) = deciding.iter().find_map(|kind| case.attempt.translated_in(kind)) {
        let addr = client.ip();
        finding.confidence = finding.confidence.min(Confidence::Likely);
        finding.summary += &format!("; its source address had been translated to {addr} (a masquerade, Istio ambient)");
        if finding.cause == Cause::NetworkPolicyDrop {
            finding.remediation.text += &format!("; behind the translation, {addr} is the address to allow");
        }
    } else if deciding.iter().any(|kind| is_of_other_target(case, kind)) {
        finding.confidence = finding.confidence.min(Confidence::Likely);
        let dst = case.attempt.flow.dst;
        let what =
            target_service(case).map_or_else(|| "a Service, a redirect".to_owned(), |name| format!("Service {name}"));
        if !finding.summary.contains(&format!("{dst} is Service")) {
            finding.summary += &format!("; its target had been {dst} ({what})");
        }
    }
}

/// A packet of another target that was dropped, or that an ICMP error is about: conntrack did not tie it to this attempt.
fn is_of_other_target(case: &Case<'_>, kind: &ObservationKind) -> bool {
    let is_elsewhere = |flow: Flow| ![flow.src, flow.dst].contains(&case.attempt.flow.dst);
    match kind {
        ObservationKind::Drop(drop) => drop.via == Via::Translated && is_elsewhere(drop.flow),
        ObservationKind::Icmp(icmp) => {
            let is_tied = |drop: &PacketDrop| drop.flow == icmp.flow && drop.via != Via::Translated;
            is_elsewhere(icmp.flow) && !case.attempt.drops().any(|(_, drop)| is_tied(drop))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The address that Istio ambient gives to probes, and the port as it was.
    fn behind() -> Flow {
        Flow { src: address("169.254.7.127:40000"), dst: address("10.88.0.2:8080") }
    }

    #[test]
    fn a_refusal_behind_a_translation_is_a_refusal_and_likely() {
        let mut stream = Stream::new();
        stream.connect().reset_sent_on(behind().reversed(), SYN, true, None).reset_received(TcpState::SynSent, 0);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Likely));
        assert_has(&verdict.summary, &["source address had been translated to 169.254.7.127"]);
    }

    #[test]
    fn the_record_has_the_own_source_and_the_fix_the_translated_one() {
        let mut stream = Stream::new();
        stream.connect().drop_with(SYN, POD, |drop| {
            (drop.reason, drop.flow, drop.via) = (Some("NETFILTER_DROP".into()), behind(), Via::Translated);
        });
        let record = stream.gives_up().verdicts().remove(0);
        assert_eq!(record.src.map(|it| it.addr.to_string()), Some("10.88.0.1".into()));
        assert_eq!(record.verdict.confidence, Confidence::Likely);
        assert_has(&record.verdict.remediation, &["Allow 169.254.7.127 -> port 8080"]);
    }

    /// The SYN to a ClusterIP is dropped in the endpoint's namespace, where conntrack does not know the ClusterIP.
    #[test]
    fn a_drop_at_the_endpoint_of_a_service_is_likely_and_names_the_service() {
        let dropped = |via| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.connect().drop_with(SYN, POD, |drop| {
                let src = drop.flow.src;
                (drop.reason, drop.via) = (Some("NETFILTER_DROP".into()), via);
                drop.flow = Flow { src, dst: address("10.88.0.2:8080") };
            });
            stream.gives_up().verdict()
        };
        let verdict = dropped(Via::Translated);
        assert_eq!((verdict.cause, verdict.confidence), (Cause::FirewallDrop, Confidence::Likely));
        assert_ends(&verdict.summary, "; its target had been 10.96.0.9:80 (a Service, a redirect)");
        assert_eq!(dropped(Via::Flow).confidence, Confidence::Proven, "conntrack knows the tuple");
    }

    /// Another pod uses the same source port by chance, while the probe waits for its own answer.
    #[test]
    fn a_pod_that_connects_to_the_same_target_is_no_translation() {
        let refused = |pod: &str| {
            let mut stream = Stream::new();
            stream.http_readiness().pod_without_specs(pod).connect().reset_sent_on(
                behind().reversed(),
                SYN,
                true,
                None,
            );
            stream.causes()
        };
        assert!(refused("169.254.7.127").is_empty());
        assert_eq!(refused("10.88.0.9"), ["connection_refused"]);
    }

    /// A masquerade with `--random-fully`, on a kernel that does not show the source port at connect.
    #[test]
    fn a_translated_source_port_is_not_reported() {
        for via in [Via::Socket, Via::Flow] {
            let mut stream = Stream::new().connect().clone();
            stream.last_connect().flow.src.set_port(0);
            stream.drop_with(SYN, POD, |drop| {
                (drop.reason, drop.via) = (Some("QDISC_DROP".into()), via);
                drop.flow.src = ([169, 254, 7, 127], 61_234).into();
            });
            let reported = stream.gives_up().verdicts();
            assert_eq!(reported.first().and_then(|it| it.src).and_then(|it| it.port), Some(40_000), "{reported:?}");
        }
    }

    #[test]
    fn another_port_is_another_connection() {
        let mut stream = Stream::new();
        let flow = Flow { src: ([169, 254, 7, 127], 40_001).into(), ..behind() };
        stream.connect().reset_sent_on(flow.reversed(), SYN, true, None).reset_received(TcpState::SynSent, 0);
        assert_lacks(&stream.verdict().summary, &["translated"]);
    }
}
