//! Repeated identical verdicts. For the first minute each is printed at once; then one record stands for all of an interval.
//!
//! The time comes only from observations, so a replay holds the same verdicts as the live run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tracer_common::names::Hook;
use tracer_model::decision::Decision;
use tracer_model::event::ConnId;
use tracer_model::record::{Body, Culprit, Evidence, Probe, VerdictBody};

/// How long identical verdicts are printed at once.
const FIRST_NS: u64 = 60_000_000_000;
/// Series remembered: a node has 250 pods by design, each with up to three probes.
const MAX_SERIES: usize = 1024;
/// Earlier attempts of a group that a revision can still remove. It comes at most seconds after an attempt's end.
const REVISABLE: usize = 16;

#[derive(Debug)]
pub(super) struct Repeats {
    /// Zero: nothing is held back.
    interval_ns: u64,
    series: BTreeMap<Vec<u8>, Series>,
    /// When the first group is due.
    pub(super) due: Option<u64>,
}

#[derive(Debug)]
struct Series {
    began: u64,
    last: u64,
    printed: u64,
    held: Option<HeldVerdicts>,
}

/// Verdicts that become one record.
#[derive(Debug)]
pub(super) struct HeldVerdicts {
    /// The latest of them.
    pub(super) decision: Decision,
    /// The clock at the latest decision; absent in a replay.
    pub(super) now_boot_ns: Option<u64>,
    pub(super) count: u64,
    pub(super) first_boot_ns: u64,
    /// The latest attempts before the attempt of `decision`.
    pub(super) earlier: VecDeque<ConnId>,
}

impl Repeats {
    pub(super) fn new(interval: Duration) -> Self {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        Self { interval_ns, series: BTreeMap::new(), due: None }
    }

    /// Takes the first verdict of an attempt. Gives it back if it must be printed now, else holds it. Appends groups that
    /// are released to make room.
    pub(super) fn take(
        &mut self,
        decision: Decision,
        now_boot_ns: Option<u64>,
        released: &mut Vec<HeldVerdicts>,
    ) -> Option<Decision> {
        let Body::Verdict(body) = &decision.body else { return Some(decision) };
        if self.interval_ns == 0 {
            return Some(decision);
        }
        let (key, time) = (identity(body), decision.time_boot_ns);
        let is_over = |series: &Series| time.saturating_sub(series.last) > FIRST_NS.max(self.interval_ns);
        if self.series.get(&key).is_some_and(is_over) {
            released.extend(self.series.remove(&key).and_then(|series| series.held));
        }
        if !self.series.contains_key(&key) {
            released.extend(self.make_room());
        }
        let begun = Series { began: time, last: time, printed: time, held: None };
        let series = self.series.entry(key).or_insert(begun);
        series.last = series.last.max(time);
        let is_due = time.saturating_sub(series.printed) >= self.interval_ns;
        if series.held.is_none() && (time.saturating_sub(series.began) < FIRST_NS || is_due) {
            series.printed = series.printed.max(time);
            return Some(decision);
        }
        let due = series.printed.saturating_add(self.interval_ns);
        series.hold(decision, now_boot_ns);
        self.due = Some(self.due.map_or(due, |earliest| earliest.min(due)));
        None
    }

    /// Removes the held verdict of an attempt, because the attempt gets another one. If the group's record is about this
    /// attempt, gives the group: it must be printed before the revision.
    pub(super) fn revise(&mut self, attempt: ConnId) -> Option<HeldVerdicts> {
        for series in self.series.values_mut() {
            let Some(held) = &mut series.held else { continue };
            if held.decision.attempt == Some(attempt) {
                return series.held.take().filter(|group| group.count > 1);
            }
            if let Some(place) = held.earlier.iter().position(|earlier| *earlier == attempt) {
                held.earlier.remove(place);
                held.count -= 1;
                return None;
            }
        }
        None
    }

    pub(super) fn release(&mut self, now_boot_ns: u64) -> Vec<HeldVerdicts> {
        let mut released = Vec::new();
        let mut next: Option<u64> = None;
        for series in self.series.values_mut().filter(|series| series.held.is_some()) {
            let due = series.printed.saturating_add(self.interval_ns);
            if due <= now_boot_ns {
                series.printed = now_boot_ns;
                released.extend(series.held.take());
            } else {
                next = Some(next.map_or(due, |earliest| earliest.min(due)));
            }
        }
        self.due = next;
        in_order(released)
    }

    pub(super) fn release_all(&mut self) -> Vec<HeldVerdicts> {
        self.due = None;
        in_order(std::mem::take(&mut self.series).into_values().filter_map(|series| series.held).collect())
    }

    /// At the limit, removes the series with the oldest last verdict.
    fn make_room(&mut self) -> Option<HeldVerdicts> {
        if self.series.len() < MAX_SERIES {
            return None;
        }
        let quietest = self.series.iter().min_by_key(|(_, series)| series.last).map(|(key, _)| key.clone())?;
        self.series.remove(&quietest)?.held
    }
}

impl Series {
    fn hold(&mut self, decision: Decision, now_boot_ns: Option<u64>) {
        let first_boot_ns = decision.time_boot_ns;
        let Some(group) = &mut self.held else {
            let earlier = VecDeque::new();
            self.held = Some(HeldVerdicts { decision, now_boot_ns, count: 1, first_boot_ns, earlier });
            return;
        };
        let before = std::mem::replace(&mut group.decision, decision);
        group.now_boot_ns = now_boot_ns;
        group.count += 1;
        if let Some(attempt) = before.attempt {
            tracer_model::recent::remember(REVISABLE, &mut group.earlier, attempt);
        }
    }
}

/// Sorts groups by the time of their records.
fn in_order(mut groups: Vec<HeldVerdicts>) -> Vec<HeldVerdicts> {
    groups.sort_by_key(|group| group.decision.time_boot_ns);
    groups
}

/// The fields that identical verdicts have in common: pod, probe, address, the whole answer, and what to do about it. It
/// leaves out what differs between attempts: times, source port, failures in a row, the wording.
fn identity(body: &VerdictBody) -> Vec<u8> {
    let probe = body.probe.clone().map(|probe| Probe { consecutive_failures: None, ..probe });
    let culprit = body.culprit.clone().map(|culprit| Culprit { time_boot_ns: None, ..culprit });
    let verdict = &body.verdict;
    let answer = (verdict.cause, verdict.outcome, verdict.confidence, culprit, &verdict.also);
    let about = (body.subject, &body.k8s, probe, body.dst, &body.process);
    let remediation = verdict.remediation.to_string();
    let places: BTreeSet<String> = verdict.evidence.iter().filter_map(place).collect();
    let fix = (body.scope, words(&remediation), places);
    // Maps have string keys and numbers are finite: nothing in these types can fail.
    serde_json::to_vec(&(answer, about, fix)).unwrap_or_default()
}

/// The words in any order, since destinations are sorted by counts. Without numbers: those of processes change when a
/// container starts again, others are measured.
fn words(text: &str) -> BTreeSet<&str> {
    let words = text.split([' ', '/']).map(|word| word.trim_matches(|c: char| c.is_ascii_punctuation()));
    words.filter(|word| word.parse::<u64>().is_err()).collect()
}

/// Where a packet was dropped, or the chain of the rule that did it. Not its handle: that changes whenever the rules are
/// written again.
fn place(evidence: &Evidence) -> Option<String> {
    let names: &[&str] = match evidence.hook.as_str() {
        hook if hook == Hook::KfreeSkb.name() => &["netns", "netfilter_hook"],
        "netfilter" => &["family", "table", "chain", "comment"],
        _ => return None,
    };
    Some(format!("{:?}", names.iter().map(|name| evidence.fields.get(*name)).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::{culprit, verdict_body};
    use serde_json::json;
    use tracer_model::record::{Cause, Confidence, Outcome, Scope};

    const S: u64 = 1_000_000_000;

    /// The verdict of an attempt of the same probe.
    fn failure(attempt: u64, second: u64) -> Decision {
        edited(attempt, second, |_| ())
    }

    fn edited(attempt: u64, second: u64, edit: impl FnOnce(&mut VerdictBody)) -> Decision {
        let mut body = verdict_body(Cause::ConnectionRefused);
        edit(&mut body);
        Decision::new(second * S, Some(ConnId(attempt)), Body::Verdict(body.into()))
    }

    /// State after identical verdicts were printed for a minute.
    fn after_a_minute(interval: Duration) -> Repeats {
        let mut repeats = Repeats::new(interval);
        for n in 0..6 {
            assert!(repeats.take(failure(n, n * 10), None, &mut Vec::new()).is_some(), "{n}");
        }
        repeats
    }

    fn holds(repeats: &mut Repeats, decision: Decision) -> bool {
        let mut released = Vec::new();
        let is_held = repeats.take(decision, None, &mut released).is_none();
        assert!(released.is_empty(), "{released:?}");
        is_held
    }

    /// Number, first and last second of each group.
    fn counts(groups: &[HeldVerdicts]) -> Vec<(u64, u64, u64)> {
        groups.iter().map(|it| (it.count, it.first_boot_ns / S, it.decision.time_boot_ns / S)).collect()
    }

    #[test]
    fn verdicts_that_are_farther_apart_than_the_interval_are_not_held() {
        let mut repeats = Repeats::new(Duration::from_secs(10));
        for n in 0..10 {
            assert!(!holds(&mut repeats, failure(n, n * 30)));
        }
    }

    #[test]
    fn a_verdict_that_differs_is_not_held() {
        let edits: [fn(&mut VerdictBody); 14] = [
            |it| it.verdict.cause = Cause::LoopbackDown,
            |it| it.verdict.outcome = Outcome::Noise,
            |it| it.verdict.confidence = Confidence::Likely,
            |it| it.culprit = Some(culprit()),
            |it| it.verdict.also = vec![Cause::DependencyUnreachable],
            |it| it.k8s.as_mut().unwrap().pod_name = Some("cart-1".into()),
            |it| it.k8s.as_mut().unwrap().container_name = Some("sidecar".into()),
            |it| it.probe.as_mut().unwrap().path = Some("/ready".into()),
            |it| it.dst.as_mut().unwrap().port = Some(81),
            |it| it.process.as_mut().unwrap().pid = 813,
            |it| it.scope = Some(Scope::Node),
            |it| it.verdict.remediation = "end the process that has the port".into(),
            |it| it.verdict.evidence.push(evidence("kfree_skb", json!({"netns": 2, "netfilter_hook": "INPUT"}))),
            |it| it.verdict.evidence.push(evidence("netfilter", json!({"chain": "OUTPUT", "handle": 4}))),
        ];
        for (n, edit) in edits.into_iter().enumerate() {
            let mut repeats = after_a_minute(Duration::from_mins(1));
            assert!(!holds(&mut repeats, edited(6, 60, edit)), "{n}");
            assert!(holds(&mut repeats, failure(7, 60)));
        }
        let mut repeats = after_a_minute(Duration::from_mins(1));
        let numbers = |it: &mut VerdictBody| {
            it.verdict.summary.push('1');
            it.probe.as_mut().unwrap().consecutive_failures = Some(7);
            it.attempt_id = Some("6".into());
            it.verdict.remediation = "check 7/813 containerPort (813)".into();
        };
        assert!(holds(&mut repeats, edited(6, 60, numbers)));
    }

    fn evidence(hook: &str, fields: serde_json::Value) -> Evidence {
        let fields = serde_json::from_value(fields).unwrap();
        Evidence { hook: hook.into(), time_boot_ns: 0, text: String::new(), fields }
    }

    /// The first rule is of the pod, and the second one of the node: the fix and the command of each are the same.
    #[test]
    fn drops_by_another_rule_or_in_another_namespace_are_not_held_as_one() {
        let dropped = |netns: u32, chain: &str, packets: u32| {
            let drop = json!({"netns": netns, "netfilter_hook": chain, "reason": "NETFILTER_DROP"});
            let rule =
                json!({"family": "ip", "table": "filter", "chain": chain, "handle": packets, "packets": packets});
            let evidence = vec![evidence("kfree_skb", drop), evidence("netfilter", rule)];
            move |it: &mut VerdictBody| it.verdict.evidence = evidence
        };
        let mut repeats = Repeats::new(Duration::from_mins(1));
        (0..6).for_each(|n| assert!(!holds(&mut repeats, edited(n, n * 10, dropped(2, "INPUT", n as u32)))));
        assert!(!holds(&mut repeats, edited(6, 60, dropped(1, "OUTPUT", 1))));
        assert!(!holds(&mut repeats, edited(7, 61, dropped(2, "BLOCKED", 1))));
        assert!(holds(&mut repeats, edited(8, 62, dropped(2, "INPUT", 9))), "only its counter and its handle differ");
    }

    #[test]
    fn after_a_pause_verdicts_are_printed_at_once_again() {
        let mut repeats = after_a_minute(Duration::from_mins(1));
        assert!(holds(&mut repeats, failure(6, 60)));
        assert_eq!((counts(&repeats.release(110 * S)), repeats.due), (vec![(1, 60, 60)], None));
        for n in 0..6 {
            assert!(!holds(&mut repeats, failure(7 + n, 121 + n * 10)));
        }
        assert!(holds(&mut repeats, failure(13, 181)));
    }

    #[test]
    fn a_revision_removes_its_attempt_from_the_group() {
        let mut repeats = after_a_minute(Duration::from_mins(1));
        (6..9).for_each(|n| assert!(holds(&mut repeats, failure(n, n * 10))));
        assert!(repeats.revise(ConnId(7)).is_none());
        assert_eq!(counts(&repeats.release_all()), [(2, 60, 80)]);
    }

    #[test]
    fn at_the_limit_the_oldest_series_is_released() {
        let mut repeats = after_a_minute(Duration::from_mins(1));
        assert!(holds(&mut repeats, failure(6, 60)));
        let mut released = Vec::new();
        for n in 0..=MAX_SERIES as u64 {
            let pod = edited(100 + n, 61, |it| it.k8s.as_mut().unwrap().pod_name = Some(n.to_string()));
            assert!(repeats.take(pod, None, &mut released).is_some());
        }
        assert_eq!((repeats.series.len(), counts(&released)), (MAX_SERIES, vec![(1, 60, 60)]));
    }
}
