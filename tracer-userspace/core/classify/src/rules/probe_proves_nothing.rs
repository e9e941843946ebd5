//! A tcpSocket attempt that succeeded at a proxy: it does so whether or not the application works.

use super::*;
use crate::rules::tls_eof_noise::touched;
use tracer_case::pod_sockets::{REDIRECT_NS, detour};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let ended = touched(case)?;
    let detour = detour(case, REDIRECT_NS)?;
    let dst = case.attempt.flow.dst;
    let summary = format!(
        "the attempt to {dst} succeeded and proves nothing; the pod's own address translation sends it to {}, past {}, which listens on port {}",
        detour.server(),
        detour.passed_over(),
        dst.port()
    );
    let evidence = vec![of_state(ended, case.attempt.last.as_ref()?), detour.evidence(case)];
    let fix = detour.fix(case, Cause::ProbeProvesNothing);
    let found = Finding::failure(Cause::ProbeProvesNothing, evidence, summary, fix);
    Some(Finding { outcome: Outcome::Noise, decided_at: ended, confidence: Confidence::Likely, ..found })
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn touched(probed: fn(&mut Stream) -> &mut Stream, redirect: Option<Redirect>) -> Stream {
        let mut stream = Stream::new();
        probed(&mut stream).pod_sockets(|reading| reading.redirect = redirect);
        stream.connect().established().closes((0, 1, 0)).clone()
    }

    #[test]
    fn a_touch_of_a_proxy_is_noise() {
        let verdicts = touched(Stream::tcp_readiness, Some(redirect(7, 8))).verdicts();
        let reported: Vec<_> = verdicts.iter().map(|it| (it.verdict.cause.name(), it.verdict.outcome)).collect();
        assert_eq!(reported, [("probe_proves_nothing", Outcome::Noise)]);
    }

    #[test]
    fn it_is_reported_again_only_after_a_change() {
        let mut stream = touched(Stream::tcp_readiness, Some(redirect(7, 8)));
        let again = |stream: &mut Stream, conn: u64| {
            stream.wait_ms(10_000).again(conn).connect().established().closes((0, 1, 0));
        };
        (8..11).for_each(|conn| again(&mut stream, conn));
        assert_eq!(stream.causes(), ["probe_proves_nothing"]);
        again(stream.pod_sockets(|reading| reading.redirect = Some(redirect(9, 8))), 11);
        assert_eq!(stream.causes(), ["probe_proves_nothing"; 2], "the proxy was started again");
    }

    #[test]
    fn a_touch_of_the_application_is_nothing() {
        for other in [None, Some(redirect(7, 7)), Some(Redirect { passed_over: None, ..redirect(7, 8) })] {
            assert!(touched(Stream::tcp_readiness, other).causes().is_empty());
        }
        assert!(
            touched(Stream::http_readiness, Some(redirect(7, 8))).causes().is_empty(),
            "an HTTP probe has to send a request"
        );
    }
}
