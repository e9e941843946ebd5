//! Failures that the kubelet counted, against those that verdicts were told of.
//!
//! A count says how many attempts of a probe failed between two readings, not when and not why. So it is compared with what
//! was told of that probe around that time; what is left over was seen by the kubelet alone. Of a command that is a verdict
//! of its own, since nothing else tells of it; of a network probe it is a disagreement, which is said, and no cause.

use std::collections::{BTreeMap, VecDeque};

use super::Core;
use super::records::unattached;
use crate::classify::counts::{Counted, disagreement, handler, of_command};
use crate::correlate::attempt::Attempt;
use crate::correlate::node::Node;
use crate::decision::Decision;
use crate::enrich::Named;
use crate::event::{FailureCount, Handler, KubeletProbe, Pod, PodRef, ProbeCounts, ProbeType};
use crate::record::{Body, Subject};

/// Words of the kubelet and the ends of attempts may come this much later than the count.
const GRACE_NS: u64 = 10_000_000_000;
/// A verdict may be told this much before the kubelet counts the attempt: at its first dropped SYN, say.
const EARLY_NS: u64 = 60_000_000_000;
/// Readings that are further apart (the kubelet did not answer) are not compared.
const WINDOW_NS: u64 = 120_000_000_000;
/// A disagreement about a probe is told again after this.
const AGAIN_NS: u64 = 3_600_000_000_000;
/// Probes remembered.
const MAX_PROBES: usize = 4096;
/// Failures remembered of each.
const MAX_TIMES: usize = 256;
/// Readings that wait.
const MAX_WAITING: usize = 16;

/// A probe, as far as it is known which one; a pod without names stands for any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod: PodRef,
    container: Option<String>,
    probe_type: Option<ProbeType>,
}

/// What was seen of it.
#[derive(Debug, Default)]
struct Tally {
    /// When verdicts told of failures that no count has been matched with.
    failed: VecDeque<u64>,
    /// When an attempt last went well.
    well: Option<u64>,
}

/// Failures of a command that were told by their count.
#[derive(Debug)]
struct Told {
    key: Key,
    within: (u64, u64),
    left: u64,
}

/// What was counted and what was told.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The kubelet's counters are read: before, nothing is kept.
    following: bool,
    /// What happened before was not seen.
    since: u64,
    tallies: BTreeMap<Key, Tally>,
    waiting: VecDeque<ProbeCounts>,
    disagreements: BTreeMap<Key, u64>,
    commands: VecDeque<Told>,
}

impl Counts {
    /// The stream begins.
    pub(super) const fn begin(&mut self, time: u64) {
        self.since = time;
    }

    /// The kubelet's counters are read.
    pub(super) const fn is_following(&self) -> bool {
        self.following
    }

    /// A reading; it is compared when the rest had the time to arrive.
    pub(super) fn take(&mut self, counts: &ProbeCounts) {
        self.following = true;
        if self.waiting.len() < MAX_WAITING && !counts.failed.is_empty() {
            self.waiting.push_back(counts.clone());
        }
    }

    /// When the next one is to be compared.
    pub(super) fn due(&self) -> Option<u64> {
        self.waiting.front().map(|it| it.to_boot_ns.saturating_add(GRACE_NS))
    }

    /// The run ends: what would still have arrived is not known.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
    }

    /// A verdict tells of a failed attempt of the prober.
    pub(super) fn failed(&mut self, attempt: &Attempt, named: &Named, node: &Node, time: u64) {
        if self.following && attempt.prober && may_be_a_probe(named, node) {
            self.note(Key::of(named), time);
        }
    }

    /// An attempt of the prober went well.
    pub(super) fn went_well(&mut self, attempt: &Attempt, named: &Named, node: &Node, time: u64) {
        if self.following && attempt.prober && may_be_a_probe(named, node) {
            self.tally(Key::of(named), time).well = Some(time);
        }
    }

    /// A verdict tells of a command that failed.
    pub(super) fn command(&mut self, probe: &KubeletProbe) {
        if self.following {
            self.note(Key::told(probe), probe.written_boot_ns);
        }
    }

    /// Its failure was told by the count already.
    pub(super) fn know(&mut self, probe: &KubeletProbe) -> bool {
        let (key, from, until) = (Key::told(probe), probe.written_boot_ns, probe.written_until());
        let is = |it: &&mut Told| it.left > 0 && it.key.fits(&key) && it.within.0 <= until && from <= it.within.1;
        let known = self.commands.iter_mut().find(is);
        known.map(|it| it.left -= 1).is_some()
    }

    fn note(&mut self, key: Key, time: u64) {
        let tally = self.tally(key, time);
        if tally.failed.len() >= MAX_TIMES {
            tally.failed.pop_front();
        }
        tally.failed.push_back(time);
    }

    /// That of a probe. Where there is no room, those go of which nothing was seen for long.
    fn tally(&mut self, key: Key, now: u64) -> &mut Tally {
        if self.tallies.len() >= MAX_PROBES && !self.tallies.contains_key(&key) {
            let old = now.saturating_sub(WINDOW_NS + EARLY_NS);
            self.tallies.retain(|_, it| it.failed.back().max(it.well.as_ref()).is_some_and(|last| *last >= old));
            if self.tallies.len() >= MAX_PROBES {
                self.tallies.pop_first();
            }
        }
        self.tallies.entry(key).or_default()
    }

    /// The next reading whose time has come.
    fn next(&mut self, now: u64) -> Option<ProbeCounts> {
        self.due().filter(|due| *due <= now)?;
        self.waiting.pop_front()
    }

    /// Matches what was counted of a probe with what was told of it, each once.
    fn matched(&mut self, count: &FailureCount, window: (u64, u64)) -> Counted {
        let key = Key::counted(count);
        let (from, until) = (window.0.saturating_sub(EARLY_NS), window.1.saturating_add(GRACE_NS));
        let mut counted = Counted { failures: count.failures, told: 0, well: false, window };
        for (_, tally) in self.tallies.iter_mut().filter(|(of, _)| of.fits(&key)) {
            tally.failed.retain(|at| {
                let is_it = counted.told < count.failures && (from..=until).contains(at);
                counted.told += u64::from(is_it);
                !is_it && *at >= from
            });
            counted.well |= tally.well.is_some_and(|at| at >= window.0);
        }
        counted
    }

    /// Whether a disagreement is to be told.
    fn is_news(&mut self, count: &FailureCount, now: u64) -> bool {
        let key = Key::counted(count);
        if self.disagreements.get(&key).is_some_and(|last| now < last.saturating_add(AGAIN_NS)) {
            return false;
        }
        if self.disagreements.len() >= MAX_PROBES {
            self.disagreements.pop_first();
        }
        self.disagreements.insert(key, now);
        true
    }

    fn tell(&mut self, count: &FailureCount, counted: &Counted) {
        if self.commands.len() >= MAX_TIMES {
            self.commands.pop_front();
        }
        let left = counted.unseen();
        self.commands.push_back(Told { key: Key::counted(count), within: counted.window, left });
    }

    /// What happened in between was seen.
    const fn is_comparable(&self, (from, until): (u64, u64)) -> bool {
        from >= self.since && until.saturating_sub(from) <= WINDOW_NS
    }
}

impl Key {
    fn of(named: &Named) -> Self {
        let k8s = named.k8s.clone().unwrap_or_default();
        Self {
            pod: PodRef { namespace: k8s.namespace, name: k8s.pod_name, uid: k8s.pod_uid },
            container: k8s.container_name,
            probe_type: named.probe.as_ref().and_then(|it| it.probe_type),
        }
    }

    fn told(probe: &KubeletProbe) -> Self {
        Self { pod: probe.pod.clone(), container: probe.container.clone(), probe_type: Some(probe.probe_type) }
    }

    fn counted(count: &FailureCount) -> Self {
        Self { pod: count.pod.clone(), container: Some(count.container.clone()), probe_type: Some(count.probe_type) }
    }

    /// It may be the same: what is not known fits everything, so that nothing is said too much.
    fn fits(&self, other: &Self) -> bool {
        fn may<T: PartialEq>(left: Option<&T>, right: Option<&T>) -> bool {
            left.zip(right).is_none_or(|(left, right)| left == right)
        }
        let pod = self.pod == PodRef::default() || self.pod.is_same(&other.pod);
        pod && may(self.container.as_ref(), other.container.as_ref())
            && may(self.probe_type.as_ref(), other.probe_type.as_ref())
    }
}

/// What the kubelet dials besides (the API server) counts for no probe; where no list tells what is probed, all may be.
fn may_be_a_probe(named: &Named, node: &Node) -> bool {
    let is_known = |pod: &Pod| pod.containers.iter().any(|it| !it.probes.is_empty() || !it.exec.is_empty());
    named.k8s.is_some() || named.subject == Subject::Probe || !node.pods.iter().any(is_known)
}

impl Core {
    /// Compares the readings whose time has come.
    pub(super) fn compare_counts(&mut self, now: u64, out: &mut Vec<Decision>) {
        while let Some(counts) = self.counts.next(now) {
            let window = (counts.from_boot_ns, counts.to_boot_ns);
            // A loss record has told already that verdicts may be missing.
            let lost = self.node.lost_between(window.0, window.1) > 0;
            for count in &counts.failed {
                let counted = self.counts.matched(count, window);
                if counted.unseen() > 0 && !lost && self.counts.is_comparable(window) {
                    self.tell_count(count, &counted, now, out);
                }
            }
        }
    }

    fn tell_count(&mut self, count: &FailureCount, counted: &Counted, now: u64, out: &mut Vec<Decision>) {
        if handler(count, &self.node) == Some(Handler::Exec) {
            self.counts.tell(count, counted);
            let (finding, named) = of_command(count, counted, &self.node);
            out.push(unattached(finding, named, None));
        } else if self.counts.is_news(count, now) {
            let body = Body::Finding(Box::new(disagreement(count, counted, &self.node)));
            out.push(Decision { time_boot_ns: now, attempt: None, body });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{AnswerKind, Fact, Observation, ProbeSays, TcpState};
    use crate::record::{Confidence, FindingBody, Status};
    use crate::testing::Stream;

    const SECOND: u64 = 1_000_000_000;

    /// The count of failures of the readiness probe of the pod in the last 20 s, and the time to compare it.
    fn counted(stream: &mut Stream, failures: u64) {
        counted_of(stream, failures, 20);
    }

    fn counted_of(stream: &mut Stream, failures: u64, window_s: u64) {
        let to = stream.now();
        let pod = PodRef { namespace: Some("default".into()), name: Some("web".into()), uid: Some("u".into()) };
        let count = FailureCount { pod, container: "app".into(), probe_type: ProbeType::Readiness, failures };
        let from_boot_ns = to.saturating_sub(window_s * SECOND);
        stream.push(Fact::ProbeCounts(Box::new(ProbeCounts { from_boot_ns, to_boot_ns: to, failed: vec![count] })));
        stream.wait_ms(11_000).push(Fact::Tick);
    }

    /// The kubelet's counters are read, for half a minute.
    fn followed() -> Stream {
        let mut stream = Stream::new();
        let now = stream.now();
        stream.push(Fact::ProbeCounts(Box::new(ProbeCounts {
            from_boot_ns: now,
            to_boot_ns: now,
            failed: Vec::new(),
        })));
        stream.wait_ms(30_000);
        stream
    }

    fn findings(stream: &Stream) -> Vec<FindingBody> {
        let told = stream.decisions().into_iter();
        told.filter_map(|it| if let Body::Finding(finding) = it.body { Some(*finding) } else { None }).collect()
    }

    #[test]
    fn a_command_that_nobody_else_tells_of_is_told_by_its_count() {
        let mut stream = followed();
        stream.exec_readiness().wait_ms(5_000);
        counted(&mut stream, 2);
        let verdicts = stream.verdicts();
        assert_eq!(stream.labels(), ["unexplained"]);
        let verdict = &verdicts[0].verdict;
        assert_eq!(verdict.confidence, Confidence::Possible);
        assert!(
            verdict.summary.contains("counted 2 failures") && verdict.summary.contains("20 s"),
            "{}",
            verdict.summary
        );
        assert_eq!(verdict.evidence[0].fields["failures"], 2);
        assert_eq!(verdicts[0].k8s.as_ref().and_then(|it| it.container_name.as_deref()), Some("app"));
        assert!(findings(&stream).is_empty());
    }

    /// Whichever of the two comes first, for each failure.
    #[test]
    fn what_the_kubelet_s_words_tell_is_not_told_again() {
        let mut first = followed();
        first
            .exec_readiness()
            .kubelet(ProbeSays::Other)
            .wait_ms(4_000)
            .kubelet(ProbeSays::CommandTimeout)
            .wait_ms(1_000);
        counted(&mut first, 2);
        assert_eq!(first.labels(), ["exec_failed", "exec_timeout"]);
        // One of three has no word.
        counted(&mut first, 1);
        assert_eq!(first.labels(), ["exec_failed", "exec_timeout", "unexplained"]);
        let mut late = followed();
        late.exec_readiness().wait_ms(5_000);
        counted(&mut late, 1);
        late.kubelet_event(ProbeSays::Other, 13_000);
        assert_eq!(late.labels(), ["unexplained"], "an Event of a failure that was counted");
        late.kubelet(ProbeSays::Other);
        assert_eq!(late.labels(), ["unexplained", "exec_failed"], "the next failure");
    }

    #[test]
    fn words_that_come_a_moment_after_the_count_are_waited_for() {
        let mut stream = followed();
        stream.exec_readiness().wait_ms(5_000);
        let at = stream.now();
        let pod = PodRef { namespace: Some("default".into()), name: Some("web".into()), uid: None };
        let count = FailureCount { pod, container: "app".into(), probe_type: ProbeType::Readiness, failures: 1 };
        let failed = vec![count];
        stream.push(Fact::ProbeCounts(Box::new(ProbeCounts { from_boot_ns: at - SECOND, to_boot_ns: at, failed })));
        stream.wait_ms(3_000).kubelet(ProbeSays::Other).wait_ms(20_000).push(Fact::Tick);
        assert_eq!(stream.labels(), ["exec_failed"]);
    }

    #[test]
    fn a_failure_that_a_verdict_tells_of_is_no_disagreement() {
        let mut stream = followed();
        stream.http_readiness().connect().gives_up().wait_ms(1_000);
        counted(&mut stream, 1);
        assert!(findings(&stream).is_empty(), "{:?}", findings(&stream));
        // It was matched: the next count is about another attempt.
        counted(&mut stream, 1);
        assert_eq!(findings(&stream).len(), 1);
    }

    #[test]
    fn a_disagreement_is_said_once_and_names_no_cause() {
        let mut stream = followed();
        stream.https_readiness().wait_ms(1_000);
        for conn in 20..22 {
            stream.again(conn).connect().established();
            stream.state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200)).wait_ms(1_000);
            counted(&mut stream, 3);
        }
        assert!(stream.labels().is_empty(), "{:?}", stream.labels());
        let findings = findings(&stream);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let finding = &findings[0];
        assert_eq!((finding.check.as_str(), finding.status), ("probe_counts", Status::Warn));
        assert_eq!((&finding.fields["counted"], &finding.fields["told"]), (&3.into(), &0.into()));
        assert!(finding.observed.contains("went well"), "{}", finding.observed);
        assert!(finding.is_of_a_probe());
    }

    #[test]
    fn that_no_attempt_was_seen_is_said() {
        let mut stream = followed();
        stream.http_readiness();
        counted(&mut stream, 1);
        assert!(findings(&stream)[0].observed.contains("no attempt of it was seen"), "{:?}", findings(&stream));
    }

    #[test]
    fn what_was_not_seen_is_not_compared() {
        let mut before = Stream::new();
        before.http_readiness().wait_ms(1_000);
        counted(&mut before, 5);
        assert!(findings(&before).is_empty(), "it began before the run");
        let mut outage = followed();
        outage.http_readiness().wait_ms(300_000);
        counted_of(&mut outage, 5, 250);
        assert!(findings(&outage).is_empty(), "the kubelet did not answer for long");
        let mut lossy = followed();
        lossy.http_readiness().wait_ms(1_000).lost(3);
        counted(&mut lossy, 5);
        assert!(findings(&lossy).is_empty(), "a loss record says it");
    }

    #[test]
    fn an_attempt_that_cannot_be_told_apart_counts_for_the_probe() {
        let mut stream = followed();
        // No list of pods: the attempt has no names.
        stream.connect().gives_up().wait_ms(1_000);
        counted(&mut stream, 1);
        assert!(findings(&stream).is_empty());
    }

    /// It cannot reach the API server: that hides no probe.
    #[test]
    fn what_the_kubelet_dials_besides_counts_for_no_probe() {
        let mut stream = followed();
        stream.http_readiness();
        let mut other = Stream::to("10.96.0.1:443");
        other.connect().gives_up();
        let begun = stream.now();
        for observation in other.observations.into_iter().skip(1) {
            stream.observations.push(Observation { time_boot_ns: begun + observation.time_boot_ns, ..observation });
        }
        stream.wait_ms(10_000);
        counted(&mut stream, 1);
        assert_eq!(findings(&stream).len(), 1);
    }

    #[test]
    fn nothing_is_kept_where_the_counters_are_not_read() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(503));
        let mut core = Core::default();
        stream.observations.iter().for_each(|it| core.push(it, &mut Vec::new()));
        assert!(core.counts.tallies.is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let mut counts = Counts { following: true, ..Counts::default() };
        let key = |n: u64| Key {
            pod: PodRef { uid: Some(n.to_string()), ..PodRef::default() },
            container: None,
            probe_type: None,
        };
        for n in 0..2 * MAX_PROBES as u64 {
            (0..2).for_each(|_| counts.note(key(n), n));
        }
        (0..2 * MAX_TIMES as u64).for_each(|n| counts.note(key(0), n));
        assert_eq!(counts.tallies.len(), MAX_PROBES);
        assert!(counts.tallies.values().all(|it| it.failed.len() <= MAX_TIMES));
    }
}
