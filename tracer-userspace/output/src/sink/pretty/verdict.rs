//! A verdict as a block: cause, summary, evidence, culprit, fix.

use super::about::{About, describe_culprit};
use super::above::Relation;
use crate::sink::plain;
use tracer_model::plural::{counted, were};
use tracer_model::record::{Confidence, Evidence, Outcome, Record, Remediation, Repeated, Verdict, VerdictBody};
use tracer_terminal::screen::{Screen, Style};

/// A line of the block: its word, and its text if there is one.
type Part = (&'static str, fn(&VerdictBody) -> Option<String>);

const CAUSE: Part = ("cause", |body| Some(body.verdict.summary.clone()));
/// The lines below the evidence.
const REST: [Part; 2] = [("kubelet", kubelet), ("culprit", culprit)];
const ALSO: Part = ("also", also);

/// The whole block, or only its new lines.
pub(super) fn block(
    out: &mut String,
    record: &Record,
    body: &VerdictBody,
    above: Option<Relation<'_>>,
    names_node: bool,
    screen: Screen,
) {
    let line = |out: &mut String, (word, part): Part| {
        let before = above.and_then(|above| part(above.body()));
        if let Some(text) = part(body).filter(|text| before.as_ref() != Some(text)) {
            screen.row(out, word, &text);
        }
    };
    head(out, record, body, above, screen);
    line(out, CAUSE);
    if has_new_evidence(body, above) {
        evidence_rows(out, &body.verdict.evidence, record.time_boot_ns, screen);
    }
    REST.into_iter().for_each(|part| line(out, part));
    let fix = &body.verdict.remediation;
    if !fix.is_empty() && above.is_none_or(|above| above.body().verdict.remediation != *fix) {
        fix_rows(out, "fix", fix, names_node.then_some(record.node_name.as_str()), screen);
    }
    line(out, ALSO);
    doubts(&body.verdict).for_each(|doubt| screen.row(out, "doubt", &doubt));
}

fn has_new_evidence(body: &VerdictBody, above: Option<Relation<'_>>) -> bool {
    match above {
        None => true,
        Some(Relation::Amends(above)) => above.verdict.evidence != body.verdict.evidence,
        Some(Relation::Repeats(..)) => false,
    }
}

fn kubelet(body: &VerdictBody) -> Option<String> {
    body.kubelet.as_ref()?.output.clone()
}

fn culprit(body: &VerdictBody) -> Option<String> {
    body.culprit.as_ref().map(describe_culprit)
}

/// The text, then each command alone on its line, below where it runs.
pub(in crate::sink) fn fix_rows(out: &mut String, word: &str, fix: &Remediation, node: Option<&str>, screen: Screen) {
    screen.row(out, word, &fix.text);
    for commands in fix.commands.chunk_by(|a, b| a.place == b.place) {
        commands.iter().take(1).for_each(|first| screen.row(out, "", &first.place.instruction(node)));
        commands.iter().for_each(|command| screen.command(out, &command.run));
    }
}

fn also(body: &VerdictBody) -> Option<String> {
    let also: Vec<_> = body.verdict.also.iter().map(|cause| cause.name()).collect();
    Some(also.join(", ")).filter(|also| !also.is_empty())
}

fn head(out: &mut String, record: &Record, body: &VerdictBody, above: Option<Relation<'_>>, screen: Screen) {
    let verdict = &body.verdict;
    let style = style(verdict);
    let relation = match (above, body.revises) {
        (Some(Relation::Repeats(whole, _)), _) => format!(", again: as #{whole}"),
        (Some(Relation::Amends(_)), Some(seq)) => format!(", amends #{seq}"),
        (None, Some(seq)) => format!(", replaces #{seq}"),
        (_, None) => String::new(),
    };
    let times = |it: &Repeated| format!(", {} since {}", counted(it.count, "time"), plain::clock(&it.first_time));
    let repeated = body.repeated.as_ref().map(times).unwrap_or_default();
    let text = format!(
        "{}  {}  {}  ({}{relation}{repeated})  #{}",
        plain::clock(&record.time),
        screen.paint(style, verdict.cause.name()),
        screen.paint(Style::Strong, &About::from(body).text()),
        screen.paint(style, &verdict.confidence.to_string()),
        record.seq,
    );
    screen.head(out, &text);
}

/// The evidence, with its times aligned.
fn evidence_rows(out: &mut String, evidence: &[Evidence], decided_boot_ns: u64, screen: Screen) {
    let times: Vec<_> = evidence.iter().map(|it| plain::relative_ms(it.time_boot_ns, decided_boot_ns)).collect();
    let width = times.iter().map(String::len).max().unwrap_or_default();
    for (n, (it, time)) in evidence.iter().zip(times).enumerate() {
        let word = if n == 0 { "evidence" } else { "" };
        screen.row_after(out, word, &format!("{time:>width$}  "), &format!("{}: {}", it.hook, it.text));
    }
}

/// What makes a verdict less sure.
pub fn doubts(verdict: &Verdict) -> impl Iterator<Item = String> {
    let lost = (verdict.lost_events > 0).then(|| format!("{} lost meanwhile", were(verdict.lost_events, "event")));
    let missing = || format!("missing hooks: {}", verdict.missing_hooks.join(", "));
    lost.into_iter().chain((!verdict.missing_hooks.is_empty()).then(missing))
}

/// The style of a failure: a stronger confidence has a stronger colour.
pub(super) const fn style_of(confidence: Confidence) -> Style {
    match confidence {
        Confidence::Proven => Style::Bad,
        Confidence::Likely => Style::Mild,
        Confidence::Possible => Style::Faint,
    }
}

pub(super) fn style(verdict: &Verdict) -> Style {
    if verdict.outcome == Outcome::Failure { style_of(verdict.confidence) } else { Style::Good }
}
