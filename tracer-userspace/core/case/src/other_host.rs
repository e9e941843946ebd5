//! The probe's `host` is an address of somebody else: what answered there, or refused, was not the pod.

use crate::case::Case;
use crate::finding::Finding;
use crate::kubectl;
use crate::wrong_field::REMOVE_HOST;
use tracer_model::event::Pod;
use tracer_model::record::{Cause, Confidence, Remediation};

/// Notes that the probe's `host` is no address of its pod, of the node, or of a Service that tracer knows.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    use Cause::{
        AppStatusFailure, ClosedWithoutAnswer, ConnectionRefused, MidStreamRst, SlowResponse, TlsHandshakeSlow,
    };
    let by_target =
        [AppStatusFailure, ClosedWithoutAnswer, ConnectionRefused, MidStreamRst, SlowResponse, TlsHandshakeSlow];
    let rests_on_target = by_target.contains(&finding.cause);
    let (Some(from), dst) = (case.attempt.netns, case.attempt.flow.dst.ip()) else { return };
    let Some(name) = case.matched.pod_of_other_host().filter(|_| rests_on_target).and_then(Pod::full_name) else {
        return;
    };
    let is_service = case.node.services.iter().any(|service| service.has_addr(dst));
    if is_service || dst.is_loopback() || case.node.owns(from, dst) {
        return;
    }
    finding.confidence = finding.confidence.min(Confidence::Likely);
    finding.summary += &format!(
        "; {dst} is the probe's host, and no address of pod {name}, of the node, or of a Service that tracer knows: the pod was not asked, unless an address translation leads there"
    );
    let fix = format!("{REMOVE_HOST}. If {dst} is meant: find out there why it fails");
    finding.remediation = match case.node.services.is_empty() {
        true => Remediation::from(format!("If {dst} is a Service, look at its endpoints. Else: {fix}"))
            .run([kubectl::services_with(dst)]),
        false => fix.into(),
    };
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    const OUTSIDE: &str = "203.0.113.7";

    /// The pod has address 10.88.0.2, and its probe a `host` that answers with status 404.
    fn asked(host: &str, change: impl FnOnce(&mut Stream)) -> Verdict {
        let mut stream = Stream::to(&format!("{host}:8080"));
        let spec = ProbeSpec { host: Some(host.into()), ..http_probe(8080) };
        let containers = vec![Container { probes: vec![spec], ..Container::default() }];
        let (namespace, name) = (Some("default".into()), Some("web".into()));
        let pod = Pod { namespace, name, addrs: vec![address("10.88.0.2")], containers, ..Pod::default() };
        stream.links(true, &["10.88.0.1", "192.0.2.2"]).push(ObservationKind::Pods(Pods { pods: vec![pod] }));
        change(&mut stream);
        stream.connect().established().answer(AnswerKind::Http, Some(404)).closes((100, 101, 200)).verdict()
    }

    #[test]
    fn another_host_answers_for_itself() {
        let verdict = asked(OUTSIDE, |_| ());
        assert_eq!((verdict.cause.name(), verdict.confidence), ("app_status_failure", Confidence::Likely));
        let words = ["203.0.113.7 is the probe's host, and no address of pod default/web,", "the pod was not asked"];
        assert_has(&verdict.summary, &words);
        assert_starts(&verdict.remediation.text, "If 203.0.113.7 is a Service, look at its endpoints. Else: Remove");
        let known = asked(OUTSIDE, |stream| _ = stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]));
        assert_starts(&known.remediation.text, "Remove `host` from the probe");
        assert!(known.remediation.commands.is_empty());
    }

    #[test]
    fn the_pod_the_node_and_a_service_are_no_other_host() {
        for host in ["10.88.0.2", "192.0.2.2"] {
            assert_eq!(asked(host, |_| ()).confidence, Confidence::Proven, "{host}");
        }
        let of_service = asked(OUTSIDE, |stream| _ = stream.service(80, |it| it.cluster_ips = vec![address(OUTSIDE)]));
        assert_eq!(of_service.confidence, Confidence::Proven);
    }
}
