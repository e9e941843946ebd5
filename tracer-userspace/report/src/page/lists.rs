//! The lists below the timeline: pods with their causes and evidence, events, findings, sources.

use maud::{Markup, html};

use super::causes::chip;
use super::verdict;
use super::view::{Cell, Row, View, WITH_EVIDENCE, confidence_text};
use super::words::{at, clock, count, date, number, safe};
use tracer_model::record::{FindingBody, Status};
use tracer_output::sink::pretty::describe_culprit;
use tracer_output::sink::pretty::findings;

/// Lines that are shown unfolded.
const OPEN: usize = 20;
/// Lines on the page at most.
const CASES: usize = 2000;

/// Each pod with each of its causes.
pub(super) fn cases(view: &View) -> Markup {
    let cells: Vec<_> = view.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell))).collect();
    let (with, without) = cells.split_at(cells.len().min(WITH_EVIDENCE));
    let (open, folded) = with.split_at(with.len().min(OPEN));
    let (without, left_out) = without.split_at(without.len().min(CASES - WITH_EVIDENCE));
    html! {
        section #cases aria-labelledby="cases-title" {
            h2 #cases-title { "Pods and their evidence" }
            p.quiet { "For each pod and cause: the first and the last verdict, and the number of verdicts." }
            @for (row, cell) in open { (case(view, row, cell)) }
            @if !folded.is_empty() || !without.is_empty() {
                details.more {
                    summary { (count((folded.len() + without.len()) as u64, "more line")) }
                    @for (row, cell) in folded { (case(view, row, cell)) }
                    @if !without.is_empty() {
                        p.quiet { "Below, the evidence is left out: --pod, --namespace or --cause narrow the page." }
                    }
                    @for (row, cell) in without { div.case { (line(view, row, cell)) } }
                }
            }
            @if !left_out.is_empty() { p.quiet { (count(left_out.len() as u64, "more line")) " are left out." } }
        }
    }
}

/// A line that can be unfolded to its evidence.
fn case(view: &View, row: &Row, cell: &Cell) -> Markup {
    html! { details.case { summary { (line(view, row, cell)) } (evidence(cell)) } }
}

/// A line: the cause, the pod, how often, when, how sure.
fn line(view: &View, row: &Row, cell: &Cell) -> Markup {
    let length = view.axis.length();
    let time = |column: Option<&(i64, u64)>| column.map_or_else(String::new, |it| clock(view.axis.begin(it.0), length));
    let first = cell.lane.first.as_ref().map_or_else(|| time(cell.columns.first()), |it| clock(it.us, length));
    let last = cell.lane.last.as_ref().map_or_else(|| time(cell.columns.last()), |it| clock(it.us, length));
    html! {
        (chip(cell.group)) " "
        span.data { (safe(&view.pod_name(&row.key))) } " "
        code { (view.groups[cell.group].group.cause.name()) } " "
        span.n { "×" (number(cell.lane.count)) } " "
        span.quiet { (first) @if first != last { "–" (last) } " · " (confidence_text(cell.lane.confidences)) }
    }
}

fn evidence(cell: &Cell) -> Markup {
    let shown = cell.examples().count() as u64;
    html! {
        @for (i, example) in cell.examples().enumerate() {
            @if i == 1 && cell.lane.count > shown {
                p.quiet.between { (count(cell.lane.count - shown, "verdict")) " between them" }
            }
            div.verdict id={"v" (example.id)} tabindex="-1" { (verdict::shown(example)) }
        }
    }
}

pub(super) fn events(view: &View) -> Markup {
    let mut kept: Vec<_> = view.events.kept.iter().chain(view.events.ports.values()).collect();
    kept.sort_by_key(|event| event.us);
    html! {
        @if !kept.is_empty() {
            section #events aria-labelledby="events-title" {
                h2 #events-title { "Events of the node" }
                table {
                    thead { tr { th { "Time" } th { "Event" } th { "What happened" } } }
                    tbody {
                        @for event in kept {
                            tr {
                                td.when { (clock(event.us, view.axis.length())) }
                                td { code { (safe(&event.body.event)) } @if view.nodes.len() > 1 { br; (safe(&event.node)) } }
                                td {
                                    (safe(&event.body.summary))
                                    @if let Some(culprit) = &event.body.culprit { br; span.quiet { (safe(&describe_culprit(culprit))) } }
                                }
                            }
                        }
                    }
                }
                @if view.events.kept.skipped() > 0 {
                    p.quiet { (count(view.events.kept.skipped(), "event")) " between the first and the last are left out; the timeline has them." }
                }
            }
        }
    }
}

/// What `doctor` found, the worst first.
pub(super) fn findings(view: &View) -> Markup {
    let mut bad: Vec<_> = view.findings.iter().filter(|(_, finding)| finding.status != Status::Ok).collect();
    bad.sort_by_key(|(_, finding)| std::cmp::Reverse(finding.status));
    html! {
        @if !bad.is_empty() {
            section #findings aria-labelledby="findings-title" {
                h2 #findings-title { "What else is wrong with the node" }
                @for ((node, _), found) in &bad { (finding(view, node, found)) }
                @if view.findings.len() > bad.len() {
                    p.quiet { (count((view.findings.len() - bad.len()) as u64, "more check")) " well." }
                }
            }
        }
    }
}

fn finding(view: &View, node: &str, found: &FindingBody) -> Markup {
    html! {
        article.finding {
            h3 { span.status .(found.status) { (found.status) } " " code { (findings::name(found)) } @if view.nodes.len() > 1 { " on " (safe(node)) } }
            p { (safe(&found.observed)) span.quiet { " · wanted: " (safe(&found.expected)) } }
            p { (safe(&found.why)) }
            dl {
                @for (word, fix) in [("Fix", &found.remediation), ("Persist", &found.persist)] {
                    @if let Some(fix) = fix { dt { (word) } dd { (verdict::fix(fix)) } }
                }
            }
        }
    }
}

pub(super) fn sources(view: &View, names: &[String]) -> Markup {
    html! {
        section #sources aria-labelledby="sources-title" {
            h2 #sources-title { "Sources of this page" }
            p.quiet { "tracer report " (env!("CARGO_PKG_VERSION")) ", " @for (i, name) in names.iter().enumerate() { @if i > 0 { ", " } span.data { (safe(name)) } } }
            @for run in view.runs.iter() {
                details {
                    summary {
                        span.data { (safe(&run.node)) } ": tracer " (safe(&run.start.version)) ", kernel " (safe(&run.start.kernel))
                        ", from " (date(run.us)) " " (at(run.us, "%H:%M:%S")) ", "
                        (run.start.hooks.len()) " hooks attached, " (run.start.missing_hooks.len()) " missing"
                        @if let Some(stop) = &run.stop { ", ended (" (safe(&stop.reason.replace('_', " "))) ")" }
                    }
                    ul {
                        @for hook in &run.start.missing_hooks {
                            li { code { (safe(&hook.hook)) } ": " (safe(&hook.lost)) span.quiet { " (" (safe(&hook.reason)) ")" } }
                        }
                        @if !run.start.sources.is_empty() { li { "Sources: " (safe(&run.start.sources.join(", "))) } }
                    }
                }
            }
            @if view.runs.skipped() > 0 { p.quiet { (count(view.runs.skipped(), "more run")) " are left out." } }
        }
    }
}
