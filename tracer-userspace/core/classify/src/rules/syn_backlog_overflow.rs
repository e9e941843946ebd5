//! The listener's queue of half-open connections is full, and SYN cookies are off.

use super::*;
use tracer_case::accept_queue::{QUEUE_HOOKS, by_reading, listeners, of_queue};
use tracer_model::event::{ListenQueue, Netns};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return None;
    }
    by_hook(case).or_else(|| by_inspection(case))
}

/// This attempt's SYN met a listener that has no room for another half-open connection.
fn by_hook(case: &Case<'_>) -> Option<Finding> {
    let (time, met) = case.attempt.queue_full(ListenQueue::HalfOpen).filter(|(time, _)| is_unanswered(case, *time))?;
    let limit = Limit::of(met.half_open, met.backlog);
    let text = match limit {
        Limit::Backlog => {
            format!("the SYN met a listener with {} half-open connections, of {} allowed", met.half_open, met.backlog)
        }
        Limit::Maximum => format!(
            "the SYN met a listener with {} half-open connections, over three quarters of net.ipv4.tcp_max_syn_backlog",
            met.half_open
        ),
    };
    let fields = json!({ "half_open": met.half_open, "backlog": met.backlog, "netns": met.netns });
    let evidence = evidence_of(Hook::TcpConnRequest.name(), time, text, fields);
    let found = finding(case, evidence, met.half_open, limit, met.netns);
    // If they are equal, newer kernels take it. Below that, the kernel lets peers pass that it knows
    // (`tcp_peer_is_proven`).
    let is_sure = met.half_open > met.backlog;
    Some(if is_sure { found } else { found.with_confidence(Confidence::Likely) })
}

/// The queue, read while the attempt waited, was full.
fn by_inspection(case: &Case<'_>) -> Option<Finding> {
    if !case.settled || !silent(case) {
        return None;
    }
    let (time, reading, listener, half_open) = inspections(case).find_map(|(time, reading)| {
        let listener = listeners(case, reading).into_iter().max_by_key(|listener| listener.half_open)?;
        let half_open = listener.half_open?;
        let full = is_full(half_open, listener.backlog, |name| reading.values.get(name).copied());
        full.then_some((time, reading, listener, half_open))
    })?;
    let limit = Limit::of(half_open, listener.backlog);
    let found = finding(case, of_queue(time, listener), half_open, limit, reading.netns);
    Some(found.with_confidence(by_reading(case)).resting_on(QUEUE_HOOKS))
}

/// `tcp_conn_request` (net/ipv4/tcp_input.c): without cookies a SYN is dropped when the half-open queue has reached the
/// backlog (newer kernels: is over it), or is over three quarters of `tcp_max_syn_backlog` for an unknown peer.
fn is_full(half_open: u32, backlog: u32, value: impl Fn(&str) -> Option<u64>) -> bool {
    if value("tcp_syncookies") != Some(0) {
        return false;
    }
    let over = value("tcp_max_syn_backlog").is_some_and(|max| max.saturating_sub(half_open.into()) < max >> 2);
    half_open >= backlog || over
}

/// The limit that the queue has reached.
#[derive(Clone, Copy)]
enum Limit {
    /// The listener's backlog.
    Backlog,
    /// Three quarters of `tcp_max_syn_backlog`.
    Maximum,
}

impl Limit {
    const fn of(half_open: u32, backlog: u32) -> Self {
        if half_open >= backlog { Self::Backlog } else { Self::Maximum }
    }

    const fn fix(self) -> &'static str {
        match self {
            Self::Backlog => "let the server listen with a longer backlog",
            Self::Maximum => "raise net.ipv4.tcp_max_syn_backlog in that network namespace",
        }
    }
}

fn finding(case: &Case<'_>, evidence: Evidence, half_open: u32, limit: Limit, netns: Option<Netns>) -> Finding {
    let dst = case.attempt.flow.dst;
    let summary = format!(
        "{dst} listens, but its queue of half-open connections is full ({half_open}) and SYN cookies are off: the kernel drops the SYN silently"
    );
    let clients = format!("ss -tn state syn-recv 'sport = :{}'", dst.port());
    let remediation = Remediation::from(format!(
        "Turn SYN cookies on, or {}. To keep a setting for a pod, set its securityContext.sysctls. The second command shows the clients that leave handshakes half done",
        limit.fix()
    ))
    .run(["sysctl -w net.ipv4.tcp_syncookies=1", &clients].map(|command| run_in(case, netns, command)));
    Finding::failure(Cause::SynBacklogOverflow, vec![evidence], summary, remediation).rests_on_lost_packet()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn half_open(half_open: u32, syncookies: u64) -> Vec<&'static str> {
        of_listeners(&[half_open], syncookies)
    }

    fn of_listeners(half_open: &[u32], syncookies: u64) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| {
            reading.values = [("tcp_syncookies".to_owned(), syncookies), ("tcp_max_syn_backlog".to_owned(), 8)].into();
            let with = |half_open: &u32| ListenerState { half_open: Some(*half_open), ..listener(0, 128) };
            reading.listeners = Some(half_open.iter().map(with).collect());
        });
        stream.gives_up().causes()
    }

    #[test]
    fn three_quarters_of_the_maximum_are_too_many_without_cookies() {
        assert_eq!(half_open(7, 0), ["syn_backlog_overflow"]);
        assert_eq!(half_open(6, 0), ["unexplained"]);
        assert_eq!(half_open(7, 1), ["unexplained"]);
    }

    /// As many as the backlog: newer kernels take one more.
    #[test]
    fn only_more_than_the_backlog_are_surely_too_many() {
        let met = |half_open: u32, backlog: u32| {
            let mut stream = Stream::new();
            stream.connect().queue_full(ListenQueue::HalfOpen).last_queue_full().half_open = half_open;
            stream.last_queue_full().backlog = backlog;
            stream.gives_up().verdict()
        };
        let [over, equal, below] = [met(9, 8), met(8, 8), met(7, 128)];
        let all = [&over, &equal, &below].map(|it| (it.cause.name(), it.confidence));
        let likely = ("syn_backlog_overflow", Confidence::Likely);
        assert_eq!(all, [("syn_backlog_overflow", Confidence::Proven), likely, likely]);
        assert_has(&equal.remediation, &["listen with a longer backlog"]);
        assert_has(&below.remediation, &["raise net.ipv4.tcp_max_syn_backlog"]);
        assert_lacks(&below.evidence[0].text, &["128"]);
    }

    /// SO_REUSEPORT: a SYN goes to one of the listeners by its hash.
    #[test]
    fn of_several_listeners_the_fullest_counts() {
        assert_eq!(of_listeners(&[0, 7, 1], 0), ["syn_backlog_overflow"]);
        assert_eq!(of_listeners(&[6, 0, 1], 0), ["unexplained"]);
    }
}
