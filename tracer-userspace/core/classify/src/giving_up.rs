//! When the prober gave up on a target, and whether it was late or early itself.

use super::Case;
use super::rules::pod_link_down::was_down_for_long;
use super::serving::held_answer;
use tracer_attempts::correlate::attempt::End;
use tracer_attempts::enrich::LATE_NS;
use tracer_model::event::{KNOWN_PROBERS, ProbeOutput, TcpState};

/// When the prober gave up on a target that had taken its request and sent nothing.
pub(super) fn taken_and_silent(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    let (ended, End::ClosedByProber) = attempt.ended? else { return None };
    let taken = attempt.request_acknowledged() && attempt.received() == Some(0) && attempt.errno().is_none();
    let is_lost = attempt.answer_lost() || held_answer(case).is_some() || was_down_for_long(case);
    (taken && attempt.failed_by_itself() && !is_lost && !gave_up_early(case)).then_some(ended)
}

/// When the target acknowledged the request, if the connection was silent after that and this was in its second half.
/// On a slow path, the acknowledgement of a request that was sent at once takes as long as the handshake.
pub(super) fn sent_request_late(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    let ((ended, _), established, last) = (attempt.ended?, attempt.established_at()?, attempt.last.as_ref()?);
    let quiet = last.quiet_ns.filter(|_| last.old == TcpState::Established)?;
    let lasted = ended.saturating_sub(established);
    let sent_once = attempt.sent_again.is_none_or(|at| at <= established || at >= ended);
    let asked = ended.saturating_sub(quiet);
    let on_the_way = round_trip_ns(case)?.saturating_mul(2).saturating_add(LEAST_IDLE_NS);
    let idle = asked.saturating_sub(established);
    (sent_once && quiet < lasted / 2 && lasted < FIRST_KEEPALIVE_NS && idle > on_the_way).then_some(asked)
}

/// The kernel may delay the acknowledgement a little.
const LEAST_IDLE_NS: u64 = 20_000_000;

/// How long a segment and its answer take, by the handshake.
pub(super) fn round_trip_ns(case: &Case<'_>) -> Option<u64> {
    let (attempt, established) = (case.attempt, case.attempt.established_at()?);
    let sent_again = attempt.syns_sent_again().filter(|at| *at < established).max();
    Some(established.saturating_sub(sent_again.unwrap_or(attempt.started)))
}

/// Go sends a first keepalive segment after 15 s (net.defaultTCPKeepAliveIdle): the last segment may be that one.
const FIRST_KEEPALIVE_NS: u64 = 15_000_000_000;

/// A kubelet's timer starts before its connect. A busy kubelet connects this much later.
const CONNECTS_LATE_NS: u64 = 250_000_000;

/// The prober closed well before the timeout, so not for want of an answer: the pod was deleted, or the prober stopped.
/// If the kubelet does report a timeout, the target had less than half of the time.
pub(super) fn gave_up_early(case: &Case<'_>) -> bool {
    let timeout = timeout_ns(case);
    let before = if is_timeout(case) { timeout / 2 } else { CONNECTS_LATE_NS.max(timeout / 10) };
    case.attempt.lasted().is_some_and(|lasted| lasted < timeout.saturating_sub(before))
}

/// The probe's timeout. If it is not known: 1 s for a kubelet, which has no shorter one, and 0 for another prober.
pub(super) fn timeout_ns(case: &Case<'_>) -> u64 {
    case.matched.timeout_s().map_or(u64::from(is_kubelet(case)), u64::from) * 1_000_000_000
}

fn is_kubelet(case: &Case<'_>) -> bool {
    case.attempt.prober && KNOWN_PROBERS.contains(&case.attempt.actor.comm.as_str())
}

/// The timeouts of a kubelet's probes are whole seconds. If tracer knows no probe of that port, a close at one shows the
/// timeout.
pub(super) fn closed_at_a_second(case: &Case<'_>) -> bool {
    let after = |lasted: u64| (lasted >= 990_000_000).then_some((lasted + 10_000_000) % 1_000_000_000);
    let is_at = case.attempt.lasted().and_then(after).is_some_and(|after| after < 110_000_000);
    is_at && is_kubelet(case) && case.matched.possible_probes().is_empty()
}

pub(super) fn is_timeout(case: &Case<'_>) -> bool {
    case.attempt
        .kubelet()
        .is_some_and(|(_, reported)| matches!(reported.reason, ProbeOutput::Timeout | ProbeOutput::TimeoutInBody))
}

/// The prober closed long after the longest timeout of the probe: it was late, perhaps with its request, too.
pub(super) fn closed_late(case: &Case<'_>) -> bool {
    let timeout = case.matched.longest_timeout_ns();
    case.attempt.lasted().zip(timeout).is_some_and(|(lasted, timeout)| lasted > timeout.saturating_add(LATE_NS))
}
