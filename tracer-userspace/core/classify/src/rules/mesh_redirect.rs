//! The pod's own address translation sent the attempt to a proxy, and the proxy closed it, not the application.

use super::*;
use tracer_case::pod_sockets::{FRESH_NS, detour};

/// Only a close or a reset counts. The proxy may have forwarded an HTTP answer of the application: see `sidecar.rs`.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let detour = detour(case, FRESH_NS)?;
    let reset = mid_stream_rst::by_target(case);
    let what = if reset.is_some() { "reset the connection" } else { "closed the connection without an answer" };
    let found = reset.or_else(|| closed_without_answer::find(case))?;
    let summary = format!(
        "{} {what}: the pod's own address translation sends {} there, past {}, which listens on it{}",
        detour.server(),
        case.attempt.flow.dst,
        detour.passed_over(),
        detour.of_earlier()
    );
    let evidence = found.evidence.into_iter().chain([detour.evidence(case)]).collect();
    let fix = detour.fix(case, Cause::MeshRedirect);
    Some(Finding {
        decided_at: found.decided_at,
        rests_on: found.rests_on,
        ..Finding::likely(Cause::MeshRedirect, evidence, summary, fix)
    })
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn reset(stream: &mut Stream) -> &mut Stream {
        stream.connect().established().resets((100, 101, 0))
    }

    fn second(redirect: Option<Redirect>, fail: fn(&mut Stream) -> &mut Stream) -> Vec<&'static str> {
        let mut stream = Stream::new().http_readiness().clone();
        fail(&mut stream).wait_ms(5).pod_sockets(|reading| reading.redirect = redirect).wait_ms(10_000).again(8);
        fail(&mut stream);
        stream.causes()
    }

    /// Neither does what exempts a port from a sidecar help there, nor does the proxy's namespace have the rules.
    #[test]
    fn a_proxy_of_all_pods_has_another_fix() {
        let mut stream = Stream::new();
        let of_node = Redirect { outside: true, ..redirect(7, 8) };
        stream.http_readiness().pod_sockets(|reading| reading.redirect = Some(of_node)).wait_ms(5_000);
        let verdict = reset(&mut stream).verdict();
        assert_starts(
            &verdict.summary,
            "envoy (pid 7) on 10.88.0.2:15006 (a process of another network namespace) reset",
        );
        assert_has(&verdict.remediation, &["ISTIO_POSTRT", "nsenter -t 8 -n iptables-save -t nat"]);
        assert_lacks(&verdict.remediation, &["rewriteAppHTTPProbers"]);
    }

    #[test]
    fn a_verdict_waits_half_a_second_for_the_sockets_of_the_pod() {
        let read_after = |ms| {
            let mut stream = Stream::new().http_readiness().clone();
            reset(&mut stream).wait_ms(ms).tick().pod_sockets(|reading| reading.redirect = Some(redirect(7, 8)));
            stream.causes()
        };
        assert_eq!((read_after(450), read_after(550)), (vec!["mesh_redirect"], vec!["mid_stream_rst"]));
    }

    /// A process that may not bind port 80 has it translated to 8080, and listens on both ports or on 8080 only.
    #[test]
    fn a_translation_to_the_application_itself_is_no_detour() {
        for other in [None, Some(redirect(7, 7)), Some(Redirect { passed_over: None, ..redirect(7, 8) })] {
            assert_eq!(second(other, reset), ["mid_stream_rst"; 2]);
        }
    }

    /// The rules may have been removed since then.
    #[test]
    fn an_old_reading_does_not_explain_the_failure() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_sockets(|reading| reading.redirect = Some(redirect(7, 8))).wait_ms(61_000);
        assert_eq!(reset(&mut stream).causes(), ["mid_stream_rst"]);
    }

    #[test]
    fn a_reading_of_an_ended_pod_does_not_explain_the_next_one() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_sockets(|reading| reading.redirect = Some(redirect(7, 8)));
        stream.netns_ends(tracer_core::testing::POD);
        assert_eq!(reset(&mut stream).causes(), ["mid_stream_rst"]);
        let mut stream = Stream::new();
        stream.http_readiness().pod_sockets(|reading| reading.redirect = Some(redirect(7, 8))).pod_in(Netns(4711));
        assert_eq!(reset(&mut stream).causes(), ["mid_stream_rst"], "another pod has its address");
    }
}
