//! The kubelet also connects for lifecycle handlers: a verdict on an attempt that may be a handler's says so.

use serde_json::json;

use crate::evidence::evidence_of;
use crate::finding::Finding;
use crate::{Case, phrases};
use tracer_attempts::enrich::HandlerMatch;
use tracer_model::event::LifecycleEvent;
use tracer_model::record::{Evidence, Outcome};

/// Notes the handler in a finding. It changes neither cause nor confidence.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    let handlers = case.matched.possible_handlers();
    if handlers.is_empty() || finding.outcome != Outcome::Failure {
        return;
    }
    let (handler, connects) = (named(handlers), if handlers.len() == 1 { "connects" } else { "connect" });
    if is_only_handlers(case) {
        finding.summary += &format!(
            "; {handler} {connects} to this port, and no probe sends a request there: {}",
            consequence(handlers)
        );
        finding.remediation.text.insert_str(0, "For the lifecycle handler: ");
    } else {
        finding.summary +=
            &format!("; {handler} {connects} to this port, too: whether this was the probe is not known");
    }
    finding.evidence.extend(handlers.iter().map(|handler| of_handler(case, handler)));
}

/// A handler connects there, and no probe does.
pub fn is_only_handlers(case: &Case<'_>) -> bool {
    case.matched.possible_probes().is_empty() && !case.matched.possible_handlers().is_empty()
}

/// "container app's preStop handler"
fn named(handlers: &[HandlerMatch<'_>]) -> String {
    let name = |(_, container, handler): &HandlerMatch<'_>| {
        format!("{}'s {} handler", phrases::name_of(container), handler.event.name())
    };
    handlers.iter().map(name).collect::<Vec<_>>().join(" and ")
}

/// The consequence of a failed handler: `startContainer` and `killContainer`,
/// pkg/kubelet/kuberuntime/kuberuntime_container.go.
fn consequence(handlers: &[HandlerMatch<'_>]) -> &'static str {
    const PRE_STOP: &str = "if a preStop handler fails, its container is ended all the same (Event FailedPreStopHook)";
    const POST_START: &str = "if a postStart handler fails, its container is killed (Event FailedPostStartHook)";
    if handlers.iter().all(|(.., handler)| handler.event == LifecycleEvent::PreStop) { PRE_STOP } else { POST_START }
}

fn of_handler(case: &Case<'_>, (pod, container, handler): &HandlerMatch<'_>) -> Evidence {
    let (name, ends) = (handler.event.name(), if pod.deleting { "; the pod is being deleted" } else { "" });
    let text = format!(
        "{} asks {} :{}{}{ends}",
        named(&[(pod, container, handler)]),
        handler.scheme,
        handler.port,
        handler.path
    );
    let fields = json!({ "lifecycle": name, "container": container.name, "port": handler.port });
    evidence_of("pods", case.attempt.started, text, fields)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    const PRE_STOP: &str =
        "; container app's preStop handler connects to this port, too: whether this was the probe is not known";

    fn refused(stream: &mut Stream, conn: u64) -> &mut Stream {
        stream.again(conn).connect().refused()
    }

    fn answered(stream: &mut Stream, conn: u64, status: u16) -> &mut Stream {
        stream.again(conn).connect().established().answers(status)
    }

    /// A pod with a readiness probe every 10 s, and a handler on the same port.
    fn shared(handler: LifecycleEvent) -> Stream {
        Stream::new().http_readiness().lifecycle(handler, 8080).clone()
    }

    /// Of each verdict: the kind of the probe, its failures in a row, and whether the verdict names the handler.
    fn reported(verdicts: &[VerdictBody]) -> Vec<(Option<ProbeType>, Option<u32>, bool)> {
        let of = |it: &VerdictBody| {
            let (probe, text) = (it.probe.as_ref().expect("a probe"), &it.verdict.summary);
            assert_eq!(
                (it.subject, probe.port, text.contains(" handler ")),
                (Subject::Probe, Some(8080), text.ends_with(PRE_STOP))
            );
            assert_eq!(it.verdict.evidence.iter().any(|evidence| evidence.hook == "pods"), text.ends_with(PRE_STOP));
            (probe.probe_type, probe.consecutive_failures, text.ends_with(PRE_STOP))
        };
        verdicts.iter().map(of).collect()
    }

    const READINESS: Option<ProbeType> = Some(ProbeType::Readiness);

    #[test]
    fn attempts_a_period_apart_are_the_probes_and_others_may_be_the_handlers() {
        let mut stream = shared(LifecycleEvent::PreStop);
        refused(&mut stream, 100).wait_ms(10_000);
        refused(&mut stream, 101).wait_ms(3_000);
        refused(&mut stream, 102).wait_ms(7_000);
        refused(&mut stream, 103);
        let verdicts = stream.verdicts();
        let expected =
            [(None, None, true), (READINESS, Some(1), false), (None, None, true), (READINESS, Some(2), false)];
        assert_eq!(reported(&verdicts), expected);
        let probe = verdicts[0].probe.as_ref().expect("a probe");
        assert_eq!((probe.timeout_s, probe.period_s, probe.path.as_deref()), (None, None, None), "a handler has none");
        assert_eq!(probe.scheme.as_deref(), Some("http"));
    }

    #[test]
    fn only_a_probe_gives_up() {
        let mut connecting = shared(LifecycleEvent::PreStop);
        connecting.connect().gives_up();
        let mut waiting = shared(LifecycleEvent::PreStop);
        waiting.connect().established().wait_ms(1_000).closes((100, 101, 0));
        for stream in [connecting, waiting] {
            assert_eq!(reported(&stream.verdicts()), [(READINESS, Some(1), false)]);
        }
        let mut waited_out = shared(LifecycleEvent::PreStop);
        waited_out.connect().wait_ms(127_000).state(TcpState::SynSent, TcpState::Close, 110, (0, 0, 0));
        assert_eq!(reported(&waited_out.verdicts()), [(None, None, true)], "the kernel gave up, not the prober");
        let mut no_port = shared(LifecycleEvent::PreStop);
        no_port.connect().no_port(99);
        assert_eq!(reported(&no_port.verdicts()), [(None, None, true)], "connect() failed");
    }

    /// A kubelet of 1.32 and newer does not close the socket when its probe times out.
    #[test]
    fn a_handler_has_no_timeout() {
        let reported_of_next = |after_ms: u64| {
            let mut stream = shared(LifecycleEvent::PreStop);
            refused(&mut stream, 100).wait_ms(after_ms);
            stream.again(101).connect().wait_ms(1_150).tick();
            reported(&stream.verdicts()[1..])
        };
        assert_eq!(reported_of_next(10_000), [(READINESS, Some(1), false)]);
        assert!(reported_of_next(3_000).is_empty(), "it may be the handler, which waits");
    }

    #[test]
    fn a_kubelet_failure_alone_does_not_revise_the_verdict() {
        let mut stream = shared(LifecycleEvent::PreStop);
        refused(&mut stream, 100).kubelet(ProbeOutput::Network);
        let kinds: Vec<_> =
            reported(&stream.verdicts()).iter().map(|(kind, _, of_handler)| (*kind, *of_handler)).collect();
        assert_eq!(kinds, [(None, true)], "the probe is still unknown");
    }

    #[test]
    fn any_status_is_a_success_for_a_handler() {
        let mut stream = shared(LifecycleEvent::PreStop);
        assert!(answered(&mut stream, 100, 404).causes().is_empty());
        answered(stream.wait_ms(10_000), 101, 404);
        assert_eq!(reported(&stream.verdicts()), [(READINESS, Some(1), false)], "a period later");
        let mut noted = shared(LifecycleEvent::PreStop);
        answered(&mut noted, 100, 503).kubelet(ProbeOutput::Status(503));
        assert_eq!(reported(&noted.verdicts()), [(READINESS, None, false)], "the kubelet took it for a failure");
        let mut tls = shared(LifecycleEvent::PreStop);
        tls.connect().established().answer(AnswerKind::Tls, None).closes((100, 101, 200));
        assert_eq!(tls.causes(), ["app_status_failure"], "neither can read TLS");
    }

    #[test]
    fn a_post_start_handler_connects_only_at_the_start() {
        let after = |seconds: u64| {
            let mut stream = shared(LifecycleEvent::PostStart);
            let began = stream.now();
            stream.runs(Runs { started_boot_ns: Some(began), ..Runs::default() }).wait_ms(seconds * 1_000);
            refused(&mut stream, 100);
            stream.verdicts().remove(0).probe.and_then(|probe| probe.probe_type)
        };
        assert_eq!((after(1), after(60)), (None, READINESS));
        let mut stream = shared(LifecycleEvent::PostStart);
        stream.runs(Runs::default());
        refused(&mut stream, 100);
        let verdict = stream.verdicts().remove(0);
        assert_eq!(verdict.probe.and_then(|probe| probe.probe_type), None, "it is being started");
        assert_has(&verdict.verdict.summary, &["; container app's postStart handler connects to this port, too"]);
    }

    /// One of the refusals may have been the handler's, which does not count in the budget.
    #[test]
    fn a_post_start_handler_spends_no_liveness_budget() {
        let mut stream = Stream::new();
        stream.liveness(1, 3).lifecycle(LifecycleEvent::PostStart, 8080).runs(Runs::default()).netns_made(POD);
        for conn in 100..104 {
            refused(&mut stream, conn).wait_ms(1_000);
        }
        let noted: Vec<_> = stream.verdicts().iter().map(|it| (it.verdict.cause, it.verdict.confidence)).collect();
        let (early, spent) = (Cause::NotListeningYet, Cause::StartupBudgetExceeded);
        assert_eq!(noted, [early, early, early, spent].map(|cause| (cause, Confidence::Likely)));
    }

    #[test]
    fn a_port_that_only_a_handler_connects_to_has_no_probe() {
        let mut stream = Stream::to("10.88.0.2:9000");
        stream.http_readiness_on(8080).second_container().lifecycle(LifecycleEvent::PreStop, 9000);
        refused(&mut stream, 100);
        let noted = stream.verdicts().remove(0);
        assert_eq!(
            (noted.subject, noted.probe, noted.verdict.cause.name()),
            (Subject::Connection, None, "connection_refused")
        );
        assert_eq!(noted.k8s.and_then(|k8s| k8s.container_name).as_deref(), Some("app"));
        let words = "; container app's preStop handler connects to this port, and no probe sends a request there: if a preStop handler fails, its container is ended all the same (Event FailedPreStopHook)";
        assert_ends(&noted.verdict.summary, words);
        assert!(
            noted.verdict.evidence.iter().any(|it| it.text == "container app's preStop handler asks http :9000/stop")
        );
        answered(&mut stream, 101, 404);
        assert_eq!(stream.causes().len(), 1, "the handler accepts any status");
    }

    #[test]
    fn a_close_after_a_request_is_not_of_a_tcp_socket_probe() {
        let mut stream = Stream::new().tcp_readiness().lifecycle(LifecycleEvent::PreStop, 8080).clone();
        stream.connect().established().closes((0, 1, 0)).wait_ms(10_000);
        stream.again(100).connect().established().server_closes((100, 101, 1));
        let noted = stream.verdicts().remove(0);
        assert_eq!((noted.verdict.cause.name(), noted.subject), ("closed_without_answer", Subject::Connection));
        assert_has(&noted.verdict.summary, &["no probe sends a request there"]);
        refused(stream.wait_ms(13_000), 101);
        assert_eq!(stream.verdicts()[1].probe.as_ref().and_then(|it| it.handler), None, "probe or handler");
    }

    /// The pod has no probe that connects, so the kubelet connects there only for the handler.
    #[test]
    fn an_attempt_to_a_pod_with_exec_probes_only_is_of_the_handler() {
        let mut stream = Stream::new().exec_readiness().at_target().lifecycle(LifecycleEvent::PostStart, 8080).clone();
        refused(&mut stream, 100);
        let noted = stream.verdicts().remove(0);
        assert_eq!((noted.subject, noted.probe), (Subject::Connection, None));
        assert_has(&noted.verdict.summary, &["(Event FailedPostStartHook)"]);
    }

    /// The readiness probe of another port fails at the same time.
    #[test]
    fn a_kubelet_failure_of_a_probe_is_not_joined_to_a_handler() {
        let mut stream = Stream::to("10.88.0.2:9000");
        stream.http_readiness_on(8080).lifecycle(LifecycleEvent::PreStop, 9000);
        refused(&mut stream, 100).kubelet(ProbeOutput::Network);
        let verdicts = stream.verdicts();
        assert!(verdicts.len() == 2 && verdicts[0].kubelet.is_none() && verdicts[1].dst.is_none(), "{verdicts:?}");
    }
}
