//! What came of an attempt, by what the probes that it can be want: a dial, a request, an answer in time.

use super::protocols::WAITED_NS;
use super::{BEFORE_TIMEOUT_NS, Matched};
use crate::correlate::attempt::End;
use tracer_model::event::{Handler, ProbeOutput, TcpState};

impl<'a> Matched<'a> {
    /// It was connected only when every probe that it can be had given up, and then nothing came of it.
    ///
    /// A kubelet built with Go 1.23 or newer (Kubernetes 1.32) goes on to dial after an httpGet probe has timed out, and closes
    /// what it gets: `Transport.getConn` of net/http detaches the dial from its request.
    pub fn is_too_late(&self) -> bool {
        let Some(connected) = self.attempt.established_at().filter(|_| self.attempt.touched_only()) else {
            return false;
        };
        self.longest_timeout_ns().is_some_and(|timeout| connected.saturating_sub(self.attempt.started) >= timeout)
    }

    /// It was connected, and all probes that it can be would have sent a request, which it did not: it was no probe of an open
    /// port.
    pub fn sent_no_request(&self) -> bool {
        let probes = self.probes_met();
        self.attempt.touched_only() && !probes.is_empty() && probes.iter().all(|spec| spec.handler != Handler::Tcp)
    }

    /// All probes that it can be ask no more than whether the port is open, and nothing was sent: once it is connected, a reset is
    /// no failure of theirs. The kubelet's `net.Dialer` has returned by then, unless the RST came before the socket was asked
    /// for its error (`DoTCPProbe`, pkg/probe/tcp/tcp.go): then it says so itself.
    pub fn only_connects(&self) -> bool {
        let probes = self.probes_met();
        let silent = self.attempt.sent().is_none_or(|n| n == 0) && self.attempt.kubelet().is_none();
        let all_dial = !probes.is_empty() && probes.iter().all(|spec| spec.handler == Handler::Tcp);
        silent && all_dial && self.handlers_met().is_empty()
    }

    /// Reset after its dial was done, if it is a probe of an open port: neither a failure nor a success.
    fn is_reset_after_connect(&self) -> bool {
        matches!(self.attempt.ended, Some((_, End::Reset))) && self.only_connects()
    }

    /// Neither a failure nor a success: what was to send a request and did not has succeeded at nothing; of what was reset after its
    /// dial it is not known, nor of what was closed when its probe had timed out.
    pub fn is_unknown_end(&self) -> bool {
        self.sent_no_request() || self.is_reset_after_connect() || self.timed_out_after_ns().is_some()
    }

    /// It failed: by itself, because every probe had timed out by then, or because the server closed before it was asked.
    pub fn failed(&self) -> bool {
        let closed = || matches!(self.attempt.ended, Some((_, End::ClosedByServer))) && self.sent_no_request();
        let by_itself = self.attempt.failed_by_itself() && !self.is_reset_after_connect();
        let answered = || self.is_cut_short() || self.is_no_answer() || self.is_redirect_loop();
        by_itself || self.is_too_late() || closed() || answered()
    }

    /// Reset in the middle of an answer: all that came had come in one segment, and the prober still waited for the rest. After a
    /// whole answer it closes within a millisecond, so that a RST that follows at once harms nobody.
    pub fn is_cut_short(&self) -> bool {
        let Some((ended, End::Reset)) = self.attempt.ended else { return false };
        let Some((at, answer)) = self.attempt.answer() else { return false };
        let established = self.attempt.last.as_ref().is_some_and(|last| last.old == TcpState::Established);
        let in_one = answer.len.is_some() && answer.len.map(u64::from) == self.attempt.received();
        established && in_one && ended.saturating_sub(at) >= WAITED_NS && self.is_no_refusal()
    }

    /// A request was sent, and what came back is shorter than any answer to it. Where no specs are known it may be in any protocol.
    pub fn is_no_answer(&self) -> bool {
        let Some((_, end)) = self.attempt.ended.filter(|(_, end)| *end != End::NotEstablished) else { return false };
        let received = self.attempt.received().filter(|n| (1..STATUS_LINE).contains(n));
        let asked = self.attempt.prober && self.attempt.sent().is_some_and(|n| n > 0) && received.is_some();
        if !asked || (end == End::ClosedByProber && self.has_timed_out()) {
            return false;
        }
        let least = match self.expects_http() {
            Some(true) if self.handlers_met().is_empty() => STATUS_LINE,
            None if !self.node.pods.have_specs() && end != End::ClosedByProber && !self.may_be_client() => FRAME,
            _ => return false,
        };
        received.is_some_and(|n| n < least)
    }

    /// It lasted as long as every probe that it can be waits.
    fn has_timed_out(&self) -> bool {
        let both = self.longest_timeout_ns().zip(self.attempt.lasted());
        both.is_some_and(|(timeout, lasted)| lasted.saturating_add(BEFORE_TIMEOUT_NS) >= timeout)
    }

    /// A probe was redirected until the kubelet followed no more: by its own word, or by so many answers in a row that were
    /// redirects, where there are fewer probes than answers.
    pub fn is_redirect_loop(&self) -> bool {
        let Some(redirected) = self.attempt.redirected.filter(|_| self.attempt.redirect_status().is_some()) else {
            return false;
        };
        if self.attempt.kubelet().is_some_and(|(_, reported)| reported.says == ProbeOutput::TooManyRedirects) {
            return true;
        }
        let many = redirected.answers + 1 >= MOST_REDIRECTS;
        let probes = self.target_specs().filter(|(.., spec)| spec.handler == Handler::Http).count();
        let to_node = || self.attempt.netns.is_some_and(|netns| self.node.owns(netns, self.attempt.flow.dst.ip()));
        many && probes < MOST_REDIRECTS as usize && (probes > 0 || !to_node())
    }
}

/// No status line is shorter: `HTTP/1.1 200` and the end of its line.
const STATUS_LINE: u64 = 13;
/// No answer over HTTP/2 is shorter than the head of its first frame (RFC 9113 4.1), and none over TLS.
const FRAME: u64 = 9;

/// Go's client, and so the kubelet, follows no more redirects of one request.
const MOST_REDIRECTS: u32 = 10;
