//! A verdict as a block: cause, summary, evidence, culprit, fix.

use super::about::{About, describe_culprit};
use super::above::Shown;
use crate::sink::plain;
use tracer_model::plural::{counted, were};
use tracer_model::record::{
    Command, Confidence, Evidence, Outcome, Record, Remediation, Repeated, Verdict, VerdictBody,
};
use tracer_terminal::screen::{Screen, Style};

/// The whole block, or only its new lines.
pub(super) fn block(
    out: &mut String,
    record: &Record,
    body: &VerdictBody,
    before: Option<&Shown>,
    names_node: bool,
    screen: Screen,
) {
    let line = |out: &mut String, word: &str, part: fn(&VerdictBody) -> Option<String>| {
        let shown = before.and_then(|before| part(&before.body));
        if let Some(text) = part(body).filter(|text| shown.as_ref() != Some(text)) {
            screen.row(out, word, &text);
        }
    };
    head(out, record, body, before, screen);
    line(out, "cause", |body| Some(body.verdict.summary.clone()));
    let evidence = &body.verdict.evidence;
    if before.is_none_or(|before| body.revises.is_some() && before.body.verdict.evidence != *evidence) {
        evidence_rows(out, evidence, record.time_boot_ns, screen);
    }
    line(out, "kubelet", |body| body.kubelet.as_ref()?.output.clone());
    line(out, "culprit", |body| body.culprit.as_ref().map(describe_culprit));
    let fix = &body.verdict.remediation;
    if !fix.is_empty() && before.is_none_or(|before| before.body.verdict.remediation != *fix) {
        fix_rows(out, "fix", fix, names_node.then_some(record.node_name.as_str()), screen);
    }
    line(out, "also", also);
    doubts(&body.verdict).for_each(|doubt| screen.row(out, "doubt", &doubt));
}

/// The text, then each command alone on its line, below where it runs.
pub(in crate::sink) fn fix_rows(out: &mut String, word: &str, fix: &Remediation, node: Option<&str>, screen: Screen) {
    screen.row(out, word, &fix.text);
    command_rows(out, &fix.commands, node, screen);
}

pub fn command_rows(out: &mut String, commands: &[Command], node: Option<&str>, screen: Screen) {
    for commands in commands.chunk_by(|a, b| a.place == b.place) {
        commands.iter().take(1).for_each(|first| screen.row(out, "", &first.place.instruction(node)));
        commands.iter().for_each(|command| screen.command(out, &command.run));
    }
}

fn also(body: &VerdictBody) -> Option<String> {
    let also: Vec<_> = body.verdict.also.iter().map(|cause| cause.name()).collect();
    Some(also.join(", ")).filter(|also| !also.is_empty())
}

fn head(out: &mut String, record: &Record, body: &VerdictBody, before: Option<&Shown>, screen: Screen) {
    let verdict = &body.verdict;
    let style = if verdict.outcome == Outcome::Failure { style_of(verdict.confidence) } else { Style::Good };
    let relation = match (before, body.revises) {
        (Some(before), None) => format!(", again: as #{}", before.whole),
        (Some(_), Some(seq)) => format!(", amends #{seq}"),
        (None, Some(seq)) => format!(", replaces #{seq}"),
        (None, None) => String::new(),
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
