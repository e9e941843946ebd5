//! The result of a rule, and what weakens it.

use crate::SETTLE_NS;
use crate::case::Case;
use tracer_common::names::Hook;
use tracer_model::event::{Loss, Netns, ServiceName};
use tracer_model::plural::were;
use tracer_model::record::{Cause, Confidence, Culprit, Evidence, Outcome, Remediation, Scope};

/// How far an attempt got past what had stopped an earlier SYN of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Nothing shows that it got further.
    None,
    /// What dropped the earlier SYN did not drop the last one.
    LaterSyn,
    /// The handshake was completed, and what came after it fails the attempt.
    Connected,
    /// And a process has accepted the connection.
    Accepted,
}

/// What a rule found.
#[derive(Clone, Debug)]
pub struct Finding {
    pub cause: Cause,
    /// How the attempt ended.
    pub outcome: Outcome,
    pub confidence: Confidence,
    /// One sentence with the names and numbers of this case.
    pub summary: String,
    pub remediation: Remediation,
    pub evidence: Vec<Evidence>,
    /// When the event that decided it happened, CLOCK_BOOTTIME.
    pub decided_at: u64,
    pub culprit: Option<Culprit>,
    /// Who has to act, if that is not what the cause's row says.
    pub scope: Option<Scope>,
    /// Hooks without which this conclusion is weaker; the verdict names those that are missing.
    pub rests_on: &'static [Hook],
    /// It rests on something that was not seen.
    pub by_absence: bool,
    /// A packet of the attempt was seen to be dropped or refused: a lost event can hide only what came after it.
    pub packet_seen: bool,
    /// It rests on a lost packet. It holds until a retransmission gets through and is refused, or meets silence.
    pub rests_on_lost_packet: bool,
    /// How far the attempt got past what had stopped an earlier SYN.
    pub progress: Progress,
    /// Those of `rests_on` that are missing.
    pub missing_hooks: Vec<Hook>,
    /// Events lost inside the attempt's window.
    pub lost_events: u64,
    /// The firewall of this namespace, read at this time or later, may complete or change the finding.
    pub waits_for: Option<(Netns, u64)>,
    /// The endpoints of this Service would complete the finding.
    pub lacks_endpoints: Option<ServiceName>,
    /// Who accepted the connection, or whether a process still listens, is not known: a reading of that would complete or
    /// change the finding.
    pub lacks_acceptor: bool,
    /// The names of the programs at the device would complete the finding.
    pub lacks_programs: bool,
    /// The acknowledgement of the prober's FIN would change the finding.
    pub waits_for_close: bool,
    /// The rest of the answer may not come, which would change the finding.
    pub waits_for_rest: bool,
    /// The end of the target's listener would complete or change the finding. A process that ends closes its sockets one
    /// after another: up to 10 ms were seen between two of them.
    pub waits_for_listener: bool,
}

impl Finding {
    /// A failure with this cause, proven, by this evidence.
    pub fn failure(cause: Cause, evidence: Vec<Evidence>, summary: String, fix: impl Into<Remediation>) -> Self {
        Self {
            cause,
            outcome: Outcome::Failure,
            confidence: Confidence::Proven,
            summary,
            remediation: fix.into(),
            decided_at: evidence.iter().map(|e| e.time_boot_ns).max().unwrap_or_default(),
            evidence,
            culprit: None,
            scope: None,
            rests_on: &[],
            by_absence: false,
            packet_seen: false,
            rests_on_lost_packet: false,
            progress: Progress::None,
            missing_hooks: Vec::new(),
            lost_events: 0,
            waits_for: None,
            lacks_endpoints: None,
            lacks_acceptor: false,
            lacks_programs: false,
            waits_for_close: false,
            waits_for_rest: false,
            waits_for_listener: false,
        }
    }

    /// The same, likely.
    pub fn likely(cause: Cause, evidence: Vec<Evidence>, summary: String, fix: impl Into<Remediation>) -> Self {
        Self { confidence: Confidence::Likely, ..Self::failure(cause, evidence, summary, fix) }
    }

    /// The same with another confidence.
    #[must_use]
    pub fn with_confidence(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }

    /// The same, and no surer than that.
    #[must_use]
    pub fn at_most(mut self, confidence: Confidence) -> Self {
        self.confidence = self.confidence.min(confidence);
        self
    }

    /// The same with its culprit.
    #[must_use]
    pub fn with_culprit(mut self, culprit: Option<Culprit>) -> Self {
        self.culprit = culprit;
        self
    }

    /// The same, concluded from the silence of these hooks.
    #[must_use]
    pub fn resting_on(mut self, hooks: &'static [Hook]) -> Self {
        self.rests_on = hooks;
        self.by_absence = true;
        self.rests_on_lost_packet()
    }

    /// The same, see [`Finding::packet_seen`]. Not if the attempt ended with an answer: its event was lost.
    #[must_use]
    pub(crate) fn of_seen_packet(mut self, case: &Case<'_>) -> Self {
        self.packet_seen = matches!(case.attempt.errno(), None | Some(libc::ETIMEDOUT));
        self
    }

    /// The same, see [`Finding::rests_on_lost_packet`].
    #[must_use]
    pub const fn rests_on_lost_packet(mut self) -> Self {
        self.rests_on_lost_packet = true;
        self
    }

    /// The same, less sure if events were lost between these moments: a lost event may have reported the missing
    /// listener. A full ring loses all events for a while. The kernel skips single runs of programs. If a cgroup makes
    /// too many listeners, tracer does not report some. Entries that a full map refused are no listeners.
    #[must_use]
    pub fn unless_a_listener_was_lost(mut self, case: &Case<'_>, from: u64, to: u64) -> Self {
        let lost = |places: &[&str]| {
            Loss::total(case.node.losses.between(from, to).filter(|loss| places.contains(&loss.where_.as_str())))
        };
        let (ring, some) = (lost(&["ring"]), lost(&["program", Loss::LISTEN]));
        if ring > 0 {
            self.confidence = self.confidence.lowered();
        } else if some > 0 {
            self.confidence = self.confidence.min(Confidence::Likely);
        }
        let all = ring.saturating_add(some);
        if all > 0 {
            self.summary += &format!("; {} lost since: one may have reported a listener", were(all, "event"));
        }
        self
    }

    /// A failure that is the process's which accepted the connection.
    pub fn rests_on_acceptor(&self) -> bool {
        use Cause::{CpuThrottled, ProbeMisconfigured, TargetStarved};
        let of_process = matches!(self.cause, ProbeMisconfigured | TargetStarved | CpuThrottled);
        self.outcome == Outcome::Failure && (of_process || self.cause.scope() == Some(Scope::Application))
    }

    /// How many events were lost inside the attempt's window.
    fn lost(&self, case: &Case<'_>) -> u64 {
        let end = case.attempt.ended.map_or(self.decided_at, |(time, _)| time.max(self.decided_at));
        // An event that ends the silence could come until the attempt had settled.
        let end = if self.by_absence { end.saturating_add(SETTLE_NS) } else { end };
        case.node.lost_between(case.attempt.started, end)
    }

    /// It concludes from silence alone, and a lost event may have ended the silence: it proves nothing.
    pub fn is_void(&self, case: &Case<'_>) -> bool {
        self.by_absence && !self.packet_seen && self.lost(case) > 0
    }

    /// Lowers the confidence by the hooks that are missing and the events that were lost. A finding that proves nothing
    /// becomes `unexplained`.
    #[must_use]
    pub fn weakened(mut self, case: &Case<'_>) -> Self {
        self.missing_hooks = case.missing(self.rests_on);
        self.lost_events = self.lost(case);
        if !self.missing_hooks.is_empty() || self.lost_events > 0 {
            self.confidence = self.confidence.lowered();
        }
        // A flood of its own packets may hide one more of a sort that was seen.
        if self.by_absence && case.attempt.is_held {
            self.confidence = self.confidence.lowered();
        }
        // Only the time shows that an answer which had begun was not complete.
        if case.attempt.kubelet().is_none() && case.matched.rest_lost_since().is_some() {
            self.confidence = self.confidence.min(Confidence::Likely);
        }
        if self.is_void(case) {
            self.cause = Cause::Unexplained;
            self.confidence = Confidence::Possible;
            self.summary = format!(
                "{} lost during this attempt; what is left does not decide it",
                were(self.lost_events, "event")
            );
            self.remediation = Cause::Unexplained.fix();
        }
        self
    }

    /// Adds the evidence of the other finding. Fixed first is what makes the rest late: a throttled container, a start that
    /// takes too long, what kept a command waiting. A dependency comes last: tracer does not know whether the pod needs it.
    pub fn join(&mut self, other: Self) {
        let rows: Vec<_> = other.evidence.into_iter().filter(|row| !self.evidence.contains(row)).collect();
        self.evidence.extend(rows);
        if matches!(other.cause, Cause::StartupBudgetExceeded | Cause::DependencyUnreachable) {
            self.summary += &format!("; {}", other.summary);
        }
        let kept_waiting = self.cause == Cause::ExecTimeout && other.cause == Cause::TargetStarved;
        let more = other.remediation;
        self.change_fix(|fix| match other.cause {
            Cause::StartupBudgetExceeded => {
                fix.reword(|otherwise| format!("If it is still starting: {}. Otherwise: {otherwise}", more.text))
            }
            Cause::DependencyUnreachable => {
                fix.reword(|first| format!("{}. {}", first.trim_end_matches('.'), more.text)).run(more.commands)
            }
            cause if cause == Cause::CpuThrottled || kept_waiting => more.then("If that does not help", fix),
            _ => fix,
        });
    }

    /// Replaces the fix by one that is made from it.
    pub fn change_fix(&mut self, change: impl FnOnce(Remediation) -> Remediation) {
        self.remediation = change(std::mem::take(&mut self.remediation));
    }

    /// Whether it has evidence that the other finding lacks. Of a dependency, a hint is enough.
    pub fn adds_to(&self, other: &Self) -> bool {
        (self.confidence > Confidence::Possible || self.cause == Cause::DependencyUnreachable)
            && self.evidence.iter().any(|e| other.evidence.iter().all(|o| o.time_boot_ns != e.time_boot_ns))
            && self.outcome == other.outcome
            && !self.by_absence
    }
}
