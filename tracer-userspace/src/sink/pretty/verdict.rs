//! A verdict as a block: the answer, then why, what was seen, who did it, what mends it.

use super::about::{About, who};
use crate::record::{Confidence, Evidence, Outcome, Record, Verdict, VerdictBody};
use crate::screen::{Screen, Style, unbroken_commands};
use crate::sink::plain;

/// The whole block.
pub(super) fn block(out: &mut String, record: &Record, body: &VerdictBody, screen: Screen) {
    let verdict = &body.verdict;
    head(out, record, body, screen);
    screen.row(out, "why", &verdict.summary);
    seen(out, &verdict.evidence, record.time_boot_ns, screen);
    if let Some(said) = body.kubelet.as_ref().and_then(|it| it.output.as_ref()) {
        screen.row(out, "kubelet", said);
    }
    if let Some(culprit) = &body.culprit {
        screen.row(out, "who", &who(culprit));
    }
    if !verdict.remediation.is_empty() {
        screen.row(out, "mend", &unbroken_commands(&verdict.remediation));
    }
    if !verdict.also.is_empty() {
        let also: Vec<_> = verdict.also.iter().map(|label| label.name()).collect();
        screen.row(out, "also", &also.join(", "));
    }
    doubts(out, verdict, screen);
}

fn head(out: &mut String, record: &Record, body: &VerdictBody, screen: Screen) {
    let verdict = &body.verdict;
    let style = style(verdict);
    let revised = body.revises.map(|seq| format!(", replaces #{seq}")).unwrap_or_default();
    let text = format!(
        "{}  {}  {}  ({}{revised})  #{}",
        plain::clock(&record.time),
        screen.paint(style, verdict.label.name()),
        screen.paint(Style::Strong, &About::from(body).text()),
        screen.paint(style, verdict.confidence.name()),
        record.seq,
    );
    screen.head(out, &text);
}

/// What was seen, its times in a column.
fn seen(out: &mut String, evidence: &[Evidence], decided_boot_ns: u64, screen: Screen) {
    let times: Vec<_> = evidence.iter().map(|seen| plain::relative_ms(seen.time_boot_ns, decided_boot_ns)).collect();
    let width = times.iter().map(String::len).max().unwrap_or_default();
    for (n, (seen, time)) in evidence.iter().zip(times).enumerate() {
        let word = if n == 0 { "seen" } else { "" };
        screen.row_after(out, word, &format!("{time:>width$}  "), &format!("{}: {}", seen.hook, seen.says));
    }
}

/// What makes a verdict less sure.
fn doubts(out: &mut String, verdict: &Verdict, screen: Screen) {
    if verdict.lost_events > 0 {
        screen.row(out, "doubt", &format!("{} events were lost meanwhile", verdict.lost_events));
    }
    if !verdict.missing_hooks.is_empty() {
        screen.row(out, "doubt", &format!("not in force: {}", verdict.missing_hooks.join(", ")));
    }
}

impl From<Confidence> for Style {
    /// Of a failure: the surer, the louder.
    fn from(confidence: Confidence) -> Self {
        match confidence {
            Confidence::Proven => Self::Bad,
            Confidence::Likely => Self::Mild,
            Confidence::Possible => Self::Faint,
        }
    }
}

/// The surer of a failure, the louder.
pub(super) fn style(verdict: &Verdict) -> Style {
    if verdict.outcome == Outcome::Failure { verdict.confidence.into() } else { Style::Good }
}
