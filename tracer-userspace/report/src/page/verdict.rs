//! One verdict with its evidence, culprit and fix.

use maud::{Markup, html};

use super::super::line;
use super::super::tally::Example;
use super::words::{at, inline, safe};
use tracer_model::record::{Body, Record, Remediation, VerdictBody};
use tracer_output::sink::plain;
use tracer_output::sink::pretty::{About, describe_culprit, doubts};

pub(super) fn record(example: &Example) -> Option<(Record, Box<VerdictBody>)> {
    let record = line::whole(&example.line).ok()?;
    let Body::Verdict(body) = &record.body else { return None };
    let body = body.clone();
    Some((record, body))
}

pub(super) fn shown(example: &Example) -> Markup {
    let Some((record, body)) = record(example) else {
        return html! { p { "This record cannot be shown: fields of it are missing or of another kind." } };
    };
    let verdict = &body.verdict;
    let doubts = doubts(verdict).collect::<Vec<_>>().join("; ");
    html! {
        p.about {
            time { (at(example.us, "%Y-%m-%d %H:%M:%S%.3f")) " UTC" } " "
            span.data { (safe(&About::from(&*body).text())) }
            span.quiet { " record #" (record.seq) " of " (safe(&record.node_name)) }
        }
        dl {
            dt { "Cause" } dd { (inline(&verdict.summary)) }
            dt { "Evidence" }
            dd {
                ol.seen {
                    @for evidence in &verdict.evidence {
                        li {
                            span.when { (plain::relative_ms(evidence.time_boot_ns, record.time_boot_ns)) } " "
                            code { (safe(&evidence.hook)) } " " (safe(&evidence.text))
                        }
                    }
                    @if verdict.evidence.is_empty() { li { "nothing" } }
                }
            }
            @if let Some(reported) = body.kubelet.as_ref().and_then(|it| it.output.as_ref()) {
                dt { "Kubelet" } dd { (safe(reported)) }
            }
            @if let Some(culprit) = &body.culprit { dt { "Culprit" } dd { (safe(&describe_culprit(culprit))) } }
            @if !verdict.remediation.is_empty() {
                dt { "Fix" } dd { (fix(&verdict.remediation)) }
            }
            @if !verdict.also.is_empty() {
                dt { "Also" }
                dd { (verdict.also.iter().map(|cause| cause.name()).collect::<Vec<_>>().join(", ")) }
            }
            @if !doubts.is_empty() { dt { "Doubt" } dd { (safe(&doubts)) } }
        }
    }
}

/// The text, and each command in a block of its own.
pub(super) fn fix(fix: &Remediation) -> Markup {
    html! {
        p.remedy { (inline(&fix.text)) }
        @for commands in fix.commands.chunk_by(|a, b| a.place == b.place) {
            @if let Some(first) = commands.first() { p.quiet { (first.place.instruction(None)) } }
            @for command in commands { pre.fix { (safe(&command.run)) } }
        }
    }
}
