//! Whether an attempt failed, by the needs of the probes that it can be: a connection, a request, an answer in time.

use super::Matched;
use crate::correlate::attempt::{End, WAITED_NS};
use tracer_common::names::Hook;
use tracer_model::event::{Answer, Handler, ProbeOutput, TcpState};

impl<'a> Matched<'a> {
    /// The attempt was connected only after every probe that it can be had timed out, and carried no data.
    ///
    /// A kubelet built with Go 1.23 or newer (Kubernetes 1.32) still connects after an httpGet probe has timed out, and
    /// then closes the connection: `Transport.getConn` of net/http detaches the dial from its request.
    pub fn is_too_late(&self) -> bool {
        let Some(connected) = self.attempt.established_at().filter(|_| self.attempt.carried_no_data()) else {
            return false;
        };
        self.longest_timeout_ns().is_some_and(|timeout| connected.saturating_sub(self.attempt.started) >= timeout)
    }

    /// All probes that it can be send a request, but the attempt carried no data.
    pub fn sent_no_request(&self) -> bool {
        let probes = self.possible_probes();
        self.attempt.carried_no_data() && !probes.is_empty() && probes.iter().all(|spec| spec.handler != Handler::Tcp)
    }

    /// The prober had sent no byte of the request when its probe timed out. The target's window stayed closed, as behind
    /// SYNPROXY without a server, or the prober itself stalled.
    pub fn timed_out_before_request(&self) -> bool {
        let Some((ended, End::ClosedByProber)) = self.attempt.ended else { return false };
        // Just before the timeout, the prober may not have come to its request.
        let waited = self.attempt.established_at().is_some_and(|at| ended.saturating_sub(at) >= WAITED_NS);
        // A connection that nobody uses ends late, too.
        let timed_out = || self.ended_at_a_timeout() || self.has_timed_out() && !self.may_be_spare();
        waited && self.sent_no_request() && timed_out() && self.spare_reason().is_none()
    }

    /// All probes that it can be are tcpSocket probes, and nothing was sent. A reset after the handshake is no failure
    /// of such a probe: the kubelet's `net.Dialer` has returned by then. If the RST comes before `net.Dialer` reads the
    /// socket's error, the kubelet reports a failure itself (`DoTCPProbe`, pkg/probe/tcp/tcp.go).
    pub fn only_connects(&self) -> bool {
        let probes = self.possible_probes();
        let silent = self.attempt.sent().is_none_or(|n| n == 0) && self.attempt.kubelet().is_none();
        let all_tcp = !probes.is_empty() && probes.iter().all(|spec| spec.handler == Handler::Tcp);
        silent && all_tcp && self.possible_handlers().is_empty()
    }

    /// The same, also if no probes are known. Whether the attempt sent a request shows at its end only.
    pub fn may_only_connect(&self) -> bool {
        self.only_connects() || self.sent_nothing_before_end() && self.may_be_any_probe()
    }

    /// The attempt can be a tcpSocket probe or another one, and nothing was sent.
    pub fn is_perhaps_tcp(&self) -> bool {
        self.sent_nothing_before_end() && self.may_be_tcp()
    }

    /// A probe that it can be is a tcpSocket probe, or no probes are known.
    pub fn may_be_tcp(&self) -> bool {
        self.may_be_any_probe() || self.possible_probes().iter().any(|spec| spec.handler == Handler::Tcp)
    }

    fn may_be_any_probe(&self) -> bool {
        let has_none = || self.possible_probes().is_empty() && self.possible_handlers().is_empty();
        self.attempt.prober && self.is_unlisted() && has_none()
    }

    /// The attempt is over, and nothing was sent. There is no outcome of the kubelet.
    fn sent_nothing_before_end(&self) -> bool {
        let is_unsent = || self.attempt.last.as_ref().is_some_and(|last| last.unsent);
        let is_unreported = self.attempt.ended.is_some() && self.attempt.kubelet().is_none();
        is_unreported && self.attempt.sent() == Some(0) && !is_unsent()
    }

    /// A tcpSocket probe was reset after its handshake: neither a failure nor a success.
    fn is_reset_after_connect(&self) -> bool {
        matches!(self.attempt.ended, Some((_, End::Reset))) && self.may_only_connect()
    }

    /// The server closed the connection of a gRPC probe, which the kubelet closes itself as soon as it has its answer.
    /// Perhaps only SETTINGS and GOAWAY had come (RFC 9113 6.8), or a proxy closed after one whole answer.
    fn may_have_gone_away(&self) -> bool {
        matches!(self.attempt.ended, Some((_, End::ClosedByServer))) && self.expects_grpc()
    }

    /// The program that reads answers is attached, and did not read this one, or only an interim answer before it: it may
    /// have been a failure. Where the program is missing, each answer counts as a success.
    pub fn is_unread(&self) -> bool {
        let is_attached = || self.node.missing_of(&[Hook::CgroupAnswer]).is_empty();
        self.attempt.is_interim() || self.attempt.is_unread() && is_attached()
    }

    /// Nothing shows a failure or a success: no request was sent, a tcpSocket probe was reset after its handshake, the
    /// connection was closed at the timeout, the server of a gRPC probe closed it, or TLS got no further than its
    /// handshake.
    pub fn is_unknown_end(&self) -> bool {
        self.sent_no_request()
            || self.is_reset_after_connect()
            || self.closed_near_timeout_ns().is_some()
            || self.may_have_gone_away()
            || self.is_unfinished_tls()
    }

    /// The attempt failed: by its end, its timeout, its answer, a lost part of it, or because it ended before the
    /// request.
    pub fn failed(&self) -> bool {
        let by_server = matches!(self.attempt.ended, Some((_, End::ClosedByServer)));
        let closed = || by_server && self.sent_no_request() && self.spare_reason().is_none();
        let by_itself = self.attempt.failed_by_itself() && !self.is_reset_after_connect();
        let unasked = || self.is_too_late() || self.timed_out_before_request() || closed();
        let answered =
            || self.is_cut_short() || self.is_no_answer() || self.is_alert_after_flight() || self.is_redirect_loop();
        by_itself || unasked() || answered() || self.rest_lost_since().is_some()
    }

    /// A RST cut the answer: all bytes came in one segment, the prober had read them, and still waited for the rest.
    /// After a whole answer the prober closes within a millisecond, so a RST right after it does no harm. A prober that
    /// has not read yet can still read all of it (`tcp_recvmsg_locked` looks at the queue before the error).
    pub fn is_cut_short(&self) -> bool {
        let Some((ended, End::Reset)) = self.attempt.ended else { return false };
        let Some((at, answer)) = self.attempt.answer() else { return false };
        let established = self.attempt.last.as_ref().is_some_and(|last| last.old == TcpState::Established);
        let in_one = answer.len.is_some() && answer.len.map(u64::from) == self.attempt.received();
        let has_read = self.attempt.reset_received().is_none_or(|(_, reset)| reset.unread.is_none_or(|n| n == 0));
        established && in_one && has_read && ended.saturating_sub(at) >= WAITED_NS && self.is_plain_http()
    }

    /// A request was sent, and the answer is shorter than any valid one. Without specs, the protocol can be any.
    pub fn is_no_answer(&self) -> bool {
        let Some((_, end)) = self.attempt.ended.filter(|(_, end)| *end != End::NotEstablished) else { return false };
        let received = self.attempt.received().filter(|n| (1..STATUS_LINE).contains(n));
        let has_request = self.attempt.prober && self.attempt.sent().is_some_and(|n| n > 0) && received.is_some();
        if !has_request || (end == End::ClosedByProber && self.has_timed_out()) {
            return false;
        }
        let least = match self.expects_http() {
            Some(true) if self.possible_handlers().is_empty() => STATUS_LINE,
            None if self.is_unlisted() && end != End::ClosedByProber && !self.may_be_client() => Answer::FRAME,
            _ => return false,
        };
        received.is_some_and(|n| n < least)
    }

    /// A probe was redirected until the kubelet gave up. Either the kubelet outcome says so, or that many answers in a
    /// row were redirects, with fewer probes than answers.
    pub fn is_redirect_loop(&self) -> bool {
        let Some(redirected) = self.attempt.redirected.filter(|_| self.attempt.redirect_status().is_some()) else {
            return false;
        };
        if self.attempt.kubelet().is_some_and(|(_, reported)| reported.reason == ProbeOutput::TooManyRedirects) {
            return true;
        }
        let many = redirected.answers + 1 >= MOST_REDIRECTS;
        let probes = self.target_specs().filter(|(.., spec)| spec.handler == Handler::Http).count();
        let to_node = || self.attempt.netns.is_some_and(|netns| self.node.owns(netns, self.attempt.flow.dst.ip()));
        many && probes < MOST_REDIRECTS as usize && (probes > 0 || !to_node())
    }
}

/// The length of the shortest status line: `HTTP/1.1 200` and the end of the line.
const STATUS_LINE: u64 = 13;

/// How many redirects Go's client, and so the kubelet, follows for one request.
const MOST_REDIRECTS: u32 = 10;

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// Behind SYNPROXY without a server, the window stays closed. A tcpSocket probe of the port writes nothing.
    #[test]
    fn a_request_that_could_not_be_sent_is_of_no_tcp_probe() {
        let decided = |unsent: bool| {
            let mut stream = Stream::new().tcp_readiness().http_liveness_too().connect().established().clone();
            stream.wait_ms(1_005).own(|it| it.closes((0, 1, 0)).last_state().unsent = unsent).settles().verdicts()
        };
        assert!(decided(false).is_empty());
        let verdict = decided(true).remove(0).verdict;
        assert_eq!(verdict.cause, Cause::Unexplained);
        assert_has(&verdict.summary, &["could send no byte of its request: the target opened no window"]);
    }

    /// A list of pods from a file lacks the newest pod.
    #[test]
    fn a_short_answer_of_a_pod_without_specs_beside_a_listed_one() {
        let closed_by = |dst: &str| {
            let mut stream = Stream::new().http_readiness().pod_without_specs("10.88.0.9").clone();
            stream.again_to(8, dst).connect().established().server_closes((100, 101, 8)).settles();
            stream.causes()
        };
        assert_eq!(closed_by("10.88.0.9:8443"), ["probe_misconfigured"]);
        assert!(closed_by("10.88.0.2:8443").is_empty(), "no probe of that pod has the port");
    }
}
