//! How far an attempt got past what had stopped an earlier SYN.

use crate::case::{Case, earlier_drop_is_gone};
use crate::finding::{Finding, Progress};
use crate::reset::is_own_close;
use crate::serving::connection;
use tracer_attempts::correlate::attempt::End;

/// See [`Progress`].
pub fn progress(case: &Case<'_>, found: &Finding) -> Progress {
    match case.attempt.is_past_handshake(found.decided_at) {
        true if is_accepted(case) => Progress::Accepted,
        true => Progress::Connected,
        false if earlier_drop_is_gone(case) && found.lost_events == 0 => Progress::LaterSyn,
        false => Progress::None,
    }
}

/// A process has read, answered or closed the connection, or holds it.
fn is_accepted(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let is_closed = matches!(attempt.ended, Some((_, End::ClosedByServer)));
    let is_reset =
        || attempt.resets_sent().any(|(at, it)| it.flow.src == attempt.flow.dst && is_own_close(case, at, it));
    let is_held = || connection(case).is_some_and(|it| it.accepted);
    is_closed || attempt.received().is_some_and(|n| n > 0) || is_held() || is_reset()
}
