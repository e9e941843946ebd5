//! The protocols of probes and of their answers.

use super::Matched;
use crate::correlate::attempt::{Attempt, End};
use tracer_model::event::{Answer, AnswerKind, Handler, ProbeOutput, ProbeProtocol, ProbeSpec};

/// A protocol of probes: tracer cannot read its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP over TLS.
    Tls,
    /// gRPC, which the kubelet uses without TLS.
    Grpc,
    /// HTTP/2 without TLS.
    Http2,
}

impl<'a> Matched<'a> {
    /// The protocol of all probes that this attempt can be. `None` if it can be a lifecycle handler: after a plain
    /// answer to HTTPS, the kubelet retries in plain HTTP (`runHTTPHandler`, pkg/kubelet/lifecycle/handlers.go).
    fn probe_protocol(&self) -> Option<Protocol> {
        if self.reported_scheme() == Some("https") {
            return Some(Protocol::Tls);
        }
        let probes = self.possible_probes();
        let first = protocol_of(probes.first()?)?;
        let agreed = probes.iter().all(|spec| protocol_of(spec) == Some(first));
        (agreed && self.possible_handlers().is_empty() && self.other_reason().is_none()).then_some(first)
    }

    /// All probes that this attempt can be speak gRPC without TLS.
    pub fn expects_grpc(&self) -> bool {
        self.probe_protocol() == Some(Protocol::Grpc)
    }

    /// The protocol of the probe, if the first bytes of the answer are of another one: the probe has failed. Not if the
    /// answer is a success or a redirect, or if the kubelet read a status. Then the request was in the protocol of the
    /// answer: the port takes both, or a redirect led to `http://`. gRPC follows no redirect, and reads no HTTP/1.
    pub fn mismatched_protocol(&self) -> Option<Protocol> {
        let (_, answer) = self.attempt.answer().filter(|(_, it)| is_beginning(self.attempt, it))?;
        let status_read = self.attempt.kubelet().is_some_and(|(_, reported)| reported.reason.status().is_some());
        let probe_protocol = self.probe_protocol()?;
        let is_accepted = answer.status.is_some_and(|status| (200..400).contains(&status));
        if status_read || is_accepted && probe_protocol != Protocol::Grpc {
            return None;
        }
        let differs = match probe_protocol {
            Protocol::Tls => matches!(answer.kind, AnswerKind::Http | AnswerKind::Http2 | AnswerKind::Other),
            Protocol::Grpc | Protocol::Http2 => {
                answer.kind == AnswerKind::Http || answer.kind.is_tls() || answer.is_no_frame()
            }
        };
        differs.then_some(probe_protocol)
    }

    /// Only the protocol of the probe can explain an answer in another one: no redirect led here, the attempt can be
    /// neither a lifecycle handler nor another connect, and the port has not answered that protocol before.
    pub fn may_have_wrong_protocol(&self) -> bool {
        let redirected = self.attempt.redirected.is_some() || self.redirected_from().is_some();
        let is_other = !self.possible_handlers().is_empty() || self.other_reason().is_some();
        !redirected && !is_other && !self.has_answered_before()
    }

    /// The port has answered the protocol of these probes before: in TLS, in HTTP/2 without TLS, or in plain HTTP.
    fn has_answered_before(&self) -> bool {
        let spoken = self.node.tls.spoken(self.attempt.flow.dst);
        // This attempt itself may have been taken for one that was answered in TLS.
        let is_before = |at: u64| self.attempt.ended.is_none_or(|(ended, _)| at < ended);
        match self.probe_protocol() {
            Some(Protocol::Tls) => spoken.tls.is_some_and(is_before),
            Some(Protocol::Grpc | Protocol::Http2) => spoken.http2,
            None => spoken.http,
        }
    }

    /// All probes that this attempt can be use HTTP/2 without TLS, and the port answered so, as far as that was read.
    pub fn is_answered_in_http2(&self) -> bool {
        let asked = matches!(self.probe_protocol(), Some(Protocol::Grpc | Protocol::Http2));
        let may_be = |answer: &Answer| match answer.kind {
            AnswerKind::Other => !answer.is_no_frame(),
            kind => kind == AnswerKind::Http2,
        };
        let read = self.attempt.answer().is_none_or(|(_, answer)| may_be(answer));
        asked && read && self.attempt.received().is_some_and(|n| n > 0)
    }

    /// The server refused the TLS handshake of a probe: its first bytes are a fatal alert.
    pub fn refused_tls(&self) -> bool {
        let alert = |answer: &Answer| answer.kind == AnswerKind::Alert && is_beginning(self.attempt, answer);
        self.attempt.answer().is_some_and(|(_, answer)| alert(answer)) && self.probe_protocol() == Some(Protocol::Tls)
    }

    /// How many bytes a TLS server sent after its first flight, if they are fewer than any HTTP answer has. The server
    /// waits for the client between the two (RFC 8446 2), so the first segment cannot have the answer.
    fn rest_of_handshake(&self) -> Option<u64> {
        let (_, end) = self.attempt.ended.filter(|_| self.probe_protocol() == Some(Protocol::Tls))?;
        let is_waiting = end == End::ClosedByProber && self.has_timed_out();
        let mut answers = self.attempt.answers();
        let (only, None) = (answers.next()?.1, answers.next()) else { return None };
        let flight = only.len.filter(|_| only.kind == AnswerKind::Tls && !is_waiting)?;
        let rest = self.attempt.received()?.checked_sub(flight.into())?;
        (rest < ANSWER_IN_TLS).then_some(rest)
    }

    /// The handshake of an HTTPS probe got no further than the server's first flight, and then an alert in place of an
    /// HTTP answer, by its length. As where the server requires a client certificate.
    pub fn is_alert_after_flight(&self) -> bool {
        self.rest_of_handshake().is_some_and(|rest| ALERTS.contains(&rest))
    }

    /// Too few bytes came over TLS for an HTTP answer, or a RST ended the connection: no success is known.
    pub(super) fn is_unfinished_tls(&self) -> bool {
        self.rest_of_handshake().is_some() || self.is_reset_in_tls()
    }

    fn is_reset_in_tls(&self) -> bool {
        matches!(self.attempt.ended, Some((_, End::Reset))) && self.probe_protocol() == Some(Protocol::Tls)
    }

    /// A RST ended the connection, perhaps after a whole answer over TLS: as many bytes came. A server that closes with
    /// `SO_LINGER` 0 ends each connection so.
    pub fn may_have_answered_in_tls(&self) -> bool {
        self.is_reset_in_tls() && self.rest_of_handshake().is_none()
    }

    /// The duration of a connection that the prober closed after the longest timeout, or after a long silence at a
    /// shorter one. An answer had begun, but tracer cannot read it, or it was not complete: a prober closes at once when
    /// it has its answer. That may come just before the timeout.
    pub fn timed_out_after_ns(&self) -> Option<u64> {
        let lasted = self.closed_near_timeout_ns()?;
        let is_over =
            self.longest_timeout_ns().is_some_and(|timeout| lasted.saturating_add(TIMER_BEFORE_NS) >= timeout);
        (is_over || self.attempt.was_quiet()).then_some(lasted)
    }

    /// The same, or the answer came just before the timeout.
    pub(super) fn closed_near_timeout_ns(&self) -> Option<u64> {
        let (_, End::ClosedByProber) = self.attempt.ended? else { return None };
        let begun = self.attempt.received().is_some_and(|n| n > 0);
        let over = self.ended_after_all() || self.ended_at_a_timeout() && self.attempt.was_quiet();
        let waited = || self.probe_protocol().is_some() || self.still_waited();
        self.attempt.lasted().filter(|_| begun && over && waited())
    }

    /// A plain HTTP probe closed so long after the last segment that its answer cannot have been complete.
    pub fn still_waited(&self) -> bool {
        self.is_plain_http() && self.attempt.was_quiet()
    }

    /// The attempt lasted as long as the longest timeout of the probes that it can be.
    fn ended_after_all(&self) -> bool {
        let both = self.longest_timeout_ns().zip(self.attempt.lasted());
        both.is_some_and(|(timeout, lasted)| lasted.saturating_add(BEFORE_TIMEOUT_NS) >= timeout)
    }

    /// The attempt lasted as long as the timeout of one of the probes that it can be.
    pub fn ended_at_a_timeout(&self) -> bool {
        let (Some(lasted), true) = (self.attempt.lasted(), self.possible_handlers().is_empty()) else { return false };
        let is_at = |timeout: u64| {
            lasted.saturating_add(BEFORE_TIMEOUT_NS) >= timeout && lasted <= timeout.saturating_add(LATE_NS)
        };
        self.possible_probes().iter().any(|spec| is_at(u64::from(spec.timeout_s) * 1_000_000_000))
    }

    /// The attempt ended when a probe that it can be had timed out.
    pub fn has_timed_out(&self) -> bool {
        self.ended_after_all() || self.ended_at_a_timeout()
    }

    /// Since when nothing of an answer arrived that had begun: the network lost the rest, and the prober gave up on it,
    /// by the kubelet outcome or by the time. Not if the prober was late itself: it may have had its answer. After a
    /// redirect, the timeout may be that of the next connection.
    pub fn rest_lost_since(&self) -> Option<u64> {
        let (_, End::ClosedByProber) = self.attempt.ended? else { return None };
        let since = self.attempt.answer_lost_since()?;
        let begun = self.attempt.received().is_some_and(|n| n > 0) && self.attempt.redirect_status().is_none();
        let gave_up = match self.attempt.kubelet() {
            Some((_, reported)) => matches!(reported.reason, ProbeOutput::Timeout | ProbeOutput::TimeoutInBody),
            None if !self.ended_after_all() && !self.attempt.was_quiet() => false,
            None => self.ended_at_a_timeout() && (self.probe_protocol().is_some() || self.still_waited()),
        };
        (begun && gave_up && self.mismatched_protocol().is_none()).then_some(since)
    }

    /// Since when nothing of an answer arrived, if the attempt failed for want of it.
    pub fn unanswered_since(&self) -> Option<u64> {
        if self.attempt.failed_by_itself() { Some(self.attempt.started) } else { self.rest_lost_since() }
    }

    /// The attempt is surely a plain HTTP probe. The kubelet reads the whole answer before it judges by the status
    /// (`DoHTTPProbe`, pkg/probe/http).
    pub(super) fn is_plain_http(&self) -> bool {
        self.expects_http() == Some(true) && self.possible_handlers().is_empty() && self.other_reason().is_none()
    }

    /// The answer to a ClientHello was not TLS: the first bytes show it, or the kubelet outcome if tracer did not read
    /// them. The bytes do not count if the port has answered in TLS before.
    pub fn is_without_tls(&self) -> bool {
        let reported = || self.attempt.kubelet().is_some_and(|(_, reported)| reported.reason == ProbeOutput::NotHttp);
        match self.attempt.answer() {
            Some(_) => {
                self.mismatched_protocol() == Some(Protocol::Tls)
                    && self.node.tls.spoken(self.attempt.flow.dst).tls.is_none()
            }
            None => reported() && self.probe_protocol() == Some(Protocol::Tls),
        }
    }
}

/// The length of a TLS alert: in plain, and encrypted in TLS 1.3, with its content type and the tag (RFC 8446 5.2).
const ALERTS: [u64; 2] = [7, 24];
/// The length of the shortest HTTP answer within TLS 1.3: HEADERS of HTTP/2 with one indexed field.
const ANSWER_IN_TLS: u64 = 5 + Answer::FRAME + 1 + 1 + 16;

fn protocol_of(spec: &ProbeSpec) -> Option<Protocol> {
    match (spec.handler, spec.speaks) {
        (_, Some(ProbeProtocol::Unknown)) | (Handler::Tcp | Handler::Exec, _) => None,
        (Handler::Grpc, Some(ProbeProtocol::Tls)) => Some(Protocol::Tls),
        (Handler::Grpc, _) => Some(Protocol::Grpc),
        (Handler::Http, _) if spec.scheme.as_deref() == Some("https") => Some(Protocol::Tls),
        (Handler::Http, speaks) => speaks.map(|_| Protocol::Http2),
    }
}

/// These bytes are the beginning of the answer, as far as tracer sees. If segments come out of order or get lost, the
/// first to arrive may not be. Then a segment that begins like HTTP may follow, and the socket counts no bytes without
/// the beginning.
pub fn is_beginning(attempt: &Attempt, answer: &Answer) -> bool {
    answer.kind == AnswerKind::Http || attempt.ended.is_some() && attempt.received() != Some(0)
}

/// The kubelet's timer begins about this long before its connect, on a node that is not busy.
const TIMER_BEFORE_NS: u64 = 2_000_000;

/// An attempt that the prober closes this shortly before its timeout may have timed out: its timer began before the
/// connect.
pub const BEFORE_TIMEOUT_NS: u64 = 10_000_000;

/// A kubelet that closes this long after its timeout was late itself. Its timer starts before the connect and fires
/// before the close. So an answer that came this short before the timeout may have come too late for the kubelet.
pub const LATE_NS: u64 = 200_000_000;
