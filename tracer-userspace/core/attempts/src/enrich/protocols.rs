//! What probes speak from their first byte on, and what they were answered in.

use super::Matched;
use crate::correlate::attempt::{Attempt, End};
use tracer_model::event::{Answer, AnswerKind, Handler, ProbeOutput, ProbeProtocol, ProbeSpec};

/// A protocol of probes: tracer cannot read its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP over TLS.
    Tls,
    /// gRPC, which the kubelet asks in plain.
    Grpc,
    /// HTTP/2 without TLS.
    Http2,
}

impl<'a> Matched<'a> {
    /// The one that all probes speak that this attempt can be. A lifecycle handler's may be none of them: the kubelet asks once more in
    /// plain where HTTPS was answered so (`runHTTPHandler`, pkg/kubelet/lifecycle/handlers.go).
    fn spoken(&self) -> Option<Protocol> {
        let probes = self.probes_met();
        let first = of(probes.first()?)?;
        let agreed = probes.iter().all(|spec| of(spec) == Some(first));
        (agreed && self.handlers_met().is_empty() && self.other_reason().is_none()).then_some(first)
    }

    /// All probes that this attempt can be ask in gRPC without TLS.
    pub fn expects_grpc(&self) -> bool {
        self.spoken() == Some(Protocol::Grpc)
    }

    /// What the probe speaks, where the first bytes of the answer belong to another protocol: it has failed. Nobody says yes to a
    /// question in another protocol: who does was asked in his own (a port that takes both, a redirect to `http://`), and so was who
    /// gave the status that the kubelet read.
    pub fn misspoken(&self) -> Option<Protocol> {
        let (_, answer) = self.attempt.answer().filter(|(_, it)| is_beginning(self.attempt, it))?;
        let status_read =
            self.attempt.kubelet().is_some_and(|(_, reported)| matches!(reported.says, ProbeOutput::Status(_)));
        if status_read || answer.status.is_some_and(|status| (200..400).contains(&status)) {
            return None;
        }
        let spoken = self.spoken()?;
        let differs = match spoken {
            Protocol::Tls => matches!(answer.kind, AnswerKind::Http | AnswerKind::Other),
            Protocol::Grpc | Protocol::Http2 => answer.kind == AnswerKind::Http || answer.kind.is_tls(),
        };
        differs.then_some(spoken)
    }

    /// The server refused the TLS handshake of a probe that speaks TLS: a fatal alert is the first that it sends.
    pub fn refused_tls(&self) -> bool {
        let alert = |answer: &Answer| answer.kind == AnswerKind::Alert && is_beginning(self.attempt, answer);
        self.attempt.answer().is_some_and(|(_, answer)| alert(answer)) && self.spoken() == Some(Protocol::Tls)
    }

    /// How long the prober held a connection that it closed when all probes that it can be had timed out. An answer had begun,
    /// but it cannot be read or was not complete: a prober that has its answer closes at once.
    pub fn timed_out_after_ns(&self) -> Option<u64> {
        let (_, End::ClosedByProber) = self.attempt.ended? else { return None };
        let timeout = self.longest_timeout_ns()?;
        let lasted = self.attempt.lasted()?;
        let over =
            self.attempt.received().is_some_and(|n| n > 0) && lasted.saturating_add(BEFORE_TIMEOUT_NS) >= timeout;
        let waited = || self.spoken().is_some() || self.still_waited();
        (over && waited()).then_some(lasted)
    }

    /// It asks in plain HTTP, and closed so long after the last segment that its answer cannot have been whole.
    fn still_waited(&self) -> bool {
        let quiet = self.attempt.last.as_ref().and_then(|last| last.quiet_ns);
        self.is_no_refusal() && quiet.is_some_and(|quiet| quiet >= WAITED_NS)
    }

    /// A probe in plain HTTP, and nothing else. Its answer is no failure as far as it was read.
    pub(super) fn is_no_refusal(&self) -> bool {
        let status = self.attempt.answer().and_then(|(_, answer)| answer.status);
        let is_probe = self.expects_http() == Some(true) && self.handlers_met().is_empty();
        is_probe && status.is_none_or(|status| status < 400) && self.other_reason().is_none()
    }

    /// A ClientHello was answered there in something else: as the first bytes show, or, where those were not read, as the kubelet says.
    /// The bytes say it not where one was answered in TLS.
    pub fn is_without_tls(&self) -> bool {
        let reported = || self.attempt.kubelet().is_some_and(|(_, reported)| reported.says == ProbeOutput::NotHttp);
        match self.attempt.answer() {
            Some(_) => self.misspoken() == Some(Protocol::Tls) && self.node.tls.answer(self.attempt.flow.dst).is_none(),
            None => reported() && self.spoken() == Some(Protocol::Tls),
        }
    }
}

fn of(spec: &ProbeSpec) -> Option<Protocol> {
    match (spec.handler, spec.speaks) {
        (_, Some(ProbeProtocol::Unknown)) | (Handler::Tcp | Handler::Exec, _) => None,
        (Handler::Grpc, Some(ProbeProtocol::Tls)) => Some(Protocol::Tls),
        (Handler::Grpc, _) => Some(Protocol::Grpc),
        (Handler::Http, _) if spec.scheme.as_deref() == Some("https") => Some(Protocol::Tls),
        (Handler::Http, speaks) => speaks.map(|_| Protocol::Http2),
    }
}

/// These bytes are the beginning of the answer, as far as that is seen. Where segments came out of order or one was lost, the first
/// to come is not: what begins like HTTP may follow, and of what has no beginning nothing was received.
pub fn is_beginning(attempt: &Attempt, answer: &Answer) -> bool {
    answer.kind == AnswerKind::Http || attempt.ended.is_some() && attempt.received() != Some(0)
}

/// An attempt that the prober closes so short before its timeout was not answered in time: its time began a moment before its
/// dial, and its timer fires a moment late.
pub const BEFORE_TIMEOUT_NS: u64 = 10_000_000;

/// Who has its answer closes at once: so long after the last byte the prober still waited for the rest.
pub(super) const WAITED_NS: u64 = 10_000_000;
