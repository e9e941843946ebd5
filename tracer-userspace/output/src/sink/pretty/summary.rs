//! The summary at the end of a run: the verdicts by cause, in the order of severity, scope and count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::about::{About, describe_culprit};
use super::tally::TextCounts;
use super::verdict::{fix_rows, style_of};
use crate::sink::plain;
use tracer_model::plural::counted;
use tracer_model::recent::Recent;
use tracer_model::record::{Cause, Confidence, Outcome, Record, Remediation, Severity, StopBody, VerdictBody};
use tracer_terminal::screen::{Screen, Style};

/// Verdicts that a revision can still take back. It comes at most seconds after their attempt's end.
const REMEMBERED: usize = 4096;
/// How many pods and culprits are named.
const NAMED: usize = 5;

/// A block's cause, and whether it is noise.
type BlockKey = (bool, Cause);

#[derive(Debug, Default)]
pub(super) struct Summary {
    groups: BTreeMap<BlockKey, CauseBlock>,
    /// The remembered verdicts by `seq`.
    reported: Recent<u64, (BlockKey, Confidence), REMEMBERED>,
}

#[derive(Debug, Default)]
struct CauseBlock {
    count: u64,
    confidences: BTreeMap<Confidence, u64>,
    first: String,
    last: String,
    hit: TextCounts,
    culprits: TextCounts,
    fixes: TextCounts<Remediation>,
    missing_hooks: BTreeSet<String>,
    lost_events: u64,
}

impl Summary {
    /// Counts a printed verdict in place of the one that it revises.
    pub(super) fn take(&mut self, record: &Record, body: &VerdictBody) {
        let hit = About::from(body).target();
        if let Some(reported) = body.revises.and_then(|seq| self.reported.get(&seq).copied()) {
            self.take_back(reported, &hit);
        }
        let verdict = &body.verdict;
        let key = (verdict.outcome != Outcome::Failure, verdict.cause);
        self.reported.insert(record.seq, (key, verdict.confidence));
        self.groups.entry(key).or_default().take(&record.time, hit, body);
    }

    fn take_back(&mut self, (key, confidence): (BlockKey, Confidence), hit: &str) {
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.count = group.count.saturating_sub(1);
        group.confidences.entry(confidence).and_modify(|n| *n = n.saturating_sub(1));
        group.hit.remove(hit);
        if group.count == 0 {
            self.groups.remove(&key);
        }
    }

    /// A block for each cause, in the order of severity, scope and count.
    pub(super) fn blocks(&self, out: &mut String, screen: Screen) {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_by_key(|((noise, cause), group)| {
            let severity = if *noise { Severity::Info } else { cause.severity() };
            (severity, cause.scope().is_none(), cause.scope(), Reverse(group.count))
        });
        let digits = groups.iter().map(|(_, group)| group.count.to_string().len()).max().unwrap_or_default();
        for (key, group) in &groups {
            group.block(out, **key, digits, screen);
        }
    }

    /// Failures, without those that were taken back.
    pub(super) fn failures(&self) -> u64 {
        self.groups.iter().filter(|((noise, _), _)| !noise).map(|(_, group)| group.count).sum()
    }
}

/// The line for a run in which no failure was printed.
pub(super) fn without_failure(stop: &StopBody, failed: u64) -> (Style, String) {
    let attempts = counted(stop.attempts, "attempt");
    if stop.attempts == 0 {
        return (Style::Mild, "no attempt was seen from its start to its end: nothing is known of this node".into());
    }
    if failed > 0 {
        return (Style::Mild, format!("no verdict; of {attempts} in all {failed} failed"));
    }
    if stop.lost_events > 0 {
        let lost = counted(stop.lost_events, "event");
        return (Style::Mild, format!("{attempts}, none seen to fail; but {lost} were lost"));
    }
    (Style::Good, format!("healthy: {attempts}, none failed"))
}

impl CauseBlock {
    fn take(&mut self, time: &str, hit: String, body: &VerdictBody) {
        let (verdict, count) = (&body.verdict, body.count());
        if self.count == 0 {
            body.repeated.as_ref().map_or(time, |repeated| &repeated.first_time).clone_into(&mut self.first);
        }
        time.clone_into(&mut self.last);
        self.count = self.count.saturating_add(count);
        let sure = self.confidences.entry(verdict.confidence).or_default();
        *sure = sure.saturating_add(count);
        self.hit.add(hit, count);
        if let Some(culprit) = &body.culprit {
            self.culprits.add(describe_culprit(culprit), 1);
        }
        if !verdict.remediation.is_empty() {
            self.fixes.add(verdict.remediation.clone(), 1);
        }
        self.missing_hooks.extend(verdict.missing_hooks.iter().cloned());
        self.lost_events = self.lost_events.saturating_add(verdict.lost_events);
    }

    /// The lines of the block; noise gets one line.
    fn block(&self, out: &mut String, (noise, cause): BlockKey, digits: usize, screen: Screen) {
        let style = if noise { Style::Good } else { self.style() };
        let head = format!(
            "{:>digits$}  {}  {}  {}",
            self.count,
            screen.paint(style, cause.name()),
            self.sureness(),
            span(&self.first, &self.last)
        );
        // Noise needs no action, so one line is enough.
        if noise {
            return screen.head(out, &format!("{head}  no failure; details: tracer explain {}", cause.name()));
        }
        screen.head(out, &head);
        screen.row(out, "hit", &self.hit.list(NAMED));
        let (culprits, more) = self.culprits.top(NAMED);
        for (n, (culprit, _)) in culprits.into_iter().enumerate() {
            screen.row(out, if n == 0 { "culprit" } else { "" }, culprit);
        }
        if let Some(more) = more {
            screen.row(out, "", &format!("and {more}"));
        }
        self.fix(out, screen);
        if cause == Cause::Unexplained {
            self.lacked(out, screen);
        }
    }

    /// The confidences and their counts, the strongest first.
    fn confidences(&self) -> impl Iterator<Item = (&Confidence, &u64)> {
        self.confidences.iter().rev().filter(|(_, count)| **count > 0)
    }

    fn style(&self) -> Style {
        style_of(self.confidences().next().map_or(Confidence::Possible, |(confidence, _)| *confidence))
    }

    /// `3 proven, 1 likely`.
    fn sureness(&self) -> String {
        self.confidences().map(|(confidence, count)| format!("{count} {confidence}")).collect::<Vec<_>>().join(", ")
    }

    fn fix(&self, out: &mut String, screen: Screen) {
        let (top, more) = self.fixes.top(1);
        let Some((fix, _)) = top.first() else { return };
        fix_rows(out, "fix", fix, None, screen);
        if let Some(more) = more {
            // The same fix begins with the same words, before its names and numbers.
            let begin = |fix: &Remediation| fix.text.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
            let is_same = self.fixes.top(usize::MAX).0.into_iter().all(|(other, _)| begin(other) == begin(fix));
            let how = if is_same { "with other names and numbers" } else { "also another fix" };
            screen.row(out, "", &format!("(and {more}, {how}: see the verdicts)"));
        }
    }

    fn lacked(&self, out: &mut String, screen: Screen) {
        let mut lacked = Vec::new();
        if !self.missing_hooks.is_empty() {
            let hooks: Vec<_> = self.missing_hooks.iter().map(String::as_str).collect();
            lacked.push(format!("hooks: {}", hooks.join(", ")));
        }
        if self.lost_events > 0 {
            lacked.push(format!("{} that were lost", counted(self.lost_events, "event")));
        }
        let nothing = "nothing: every hook that could show it was attached, and no event was lost";
        screen.row(out, "missing", if lacked.is_empty() { nothing.to_owned() } else { lacked.join("; ") }.as_str());
    }
}

/// `01:49:05 to 01:52:11`, with the dates where they differ.
fn span(first: &str, last: &str) -> String {
    if plain::date(first) != plain::date(last) {
        return format!("{} to {}", plain::date_and_time(first), plain::date_and_time(last));
    }
    let second = |time: &str| time.get(11..19).unwrap_or(time).to_owned();
    let (first, last) = (second(first), second(last));
    if first == last { first } else { format!("{first} to {last}") }
}
