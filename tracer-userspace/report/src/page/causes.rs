//! Each cause: a row in the table at the top, and a card with its fix, culprit and evidence.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::verdict;
use super::view::{GroupView, View, colour, confidence_text, letter};
use super::words::{clock, count, inline, number, safe};
use tracer_model::record::{Block, Remediation, Section};
use tracer_output::sink::pretty::describe_culprit;

/// Fixes, and culprits, that are shown for a cause.
const VARIANTS: usize = 5;
/// Pods that are named for a cause.
const PODS: usize = 8;

/// Different texts, and the names of the pods that have each.
type Variants<T> = Vec<(T, Vec<String>)>;

/// Summary, fixes and culprits of the kept verdicts of a cause, the most frequent first.
pub(super) struct CauseDetails {
    why: String,
    fixes: Variants<Remediation>,
    culprits: Variants<String>,
}

/// Causes that the table at the top shows; the others are folded.
const TOP: usize = 8;

pub(super) fn details(view: &View) -> Vec<CauseDetails> {
    (0..view.groups.len()).map(|place| collect_details(view, place)).collect()
}

/// The table of the causes, each with its fix and a link to its card.
pub(super) fn table(view: &View, details: &[CauseDetails]) -> Markup {
    let (top, rest) = view.groups.split_at(view.groups.len().min(TOP));
    html! {
        @if !view.groups.is_empty() {
            section #top aria-labelledby="top-title" {
                h2 #top-title { "Causes" }
                (rows(view, details, 0, top))
                @if !rest.is_empty() {
                    details {
                        summary { (count(rest.len() as u64, "more cause")) }
                        (rows(view, details, TOP, rest))
                    }
                }
            }
        }
    }
}

fn rows(view: &View, details: &[CauseDetails], first: usize, groups: &[GroupView]) -> Markup {
    html! {
        table.top {
            thead { tr { th { "Cause" } th { "What it means, and the fix" } th { "Failed" } th { "Pods" } th { "Confidence" } th { "Last" } } }
            tbody {
                @for (place, group) in (first..).zip(groups) {
                    tr {
                        td { a href={"#cause-" (letter(place))} { (chip(place)) " " code { (group.group.cause.name()) } } }
                        td {
                            (group.group.cause.title())
                            @if let [(fix, pods), others @ ..] = details[place].fixes.as_slice() {
                                @if !others.is_empty() { p.of { (pod_names(pods)) " (" (others.len()) " more below):" } }
                                p.remedy.quiet { (inline(&fix.text)) }
                            }
                        }
                        td.n {
                            @if group.group.noise { "0" span.quiet { " (" (number(group.count)) " misleading)" } }
                            @else { (number(group.count)) }
                        }
                        td { (pod_or_count(view, place, group)) }
                        td { (confidence_text(group.confidences)) }
                        td.when { @if group.span.0 <= group.span.1 { (clock(group.span.1, view.axis.length())) } }
                    }
                }
            }
        }
    }
}

/// A card for each cause; causes without a failure are folded.
pub(super) fn section(view: &View, details: &[CauseDetails]) -> Markup {
    let failures = view.groups.iter().take_while(|it| !it.group.noise).count();
    let cards = |from: usize, groups: &[GroupView]| {
        html! { @for (place, group) in (from..).zip(groups) { (card(view, place, group, &details[place])) } }
    };
    let (failed, misleading) = view.groups.split_at(failures);
    html! {
        @if !view.groups.is_empty() {
            section #causes aria-labelledby="causes-title" {
                h2 #causes-title { "Causes and their fixes" }
                (cards(0, failed))
                @if !misleading.is_empty() {
                    details.more {
                        summary { (count(misleading.len() as u64, "cause")) " without a failure: a misleading trace only" }
                        (cards(failures, misleading))
                    }
                }
            }
        }
    }
}

fn card(view: &View, place: usize, group: &GroupView, details: &CauseDetails) -> Markup {
    let cause = group.group.cause;
    let (first, last) = (clock(group.span.0, view.axis.length()), clock(group.span.1, view.axis.length()));
    html! {
        article id={"cause-" (letter(place))} .cause .(colour(place)) {
            h3 { (chip(place)) code { (cause.name()) } " " span.title { (cause.title()) } }
            p.facts {
                @if group.group.noise { (count(group.count, "attempt")) " that did not fail and left a misleading trace" }
                @else { strong { (count(group.count, "failed attempt")) } }
                " · " (pod_or_count(view, place, group)) " · " (confidence_text(group.confidences))
                @if group.span.0 <= group.span.1 { " · " time { (first) } @if first != last { "–" time { (last) } } " UTC" }
            }
            p.why { (inline(&details.why)) }
            dl {
                (variants("Fix", &details.fixes, verdict::fix))
                (variants("Culprit", &details.culprits, |who| html! { p.who { (safe(who)) } }))
            }
            (evidence(view, place))
            details {
                summary { "What " code { (cause.name()) } " means, and what looks alike" }
                @for section in [Section::Meaning, Section::Lookalikes, Section::Fix] {
                    h4 { (section.heading()) }
                    @for block in cause.section(section) { (shown(&block)) }
                }
            }
        }
    }
}

fn shown(block: &Block) -> Markup {
    html! {
        @match block {
            Block::Text(text) => p { (inline(text)) },
            Block::Item(0, text) => ul { li { (inline(text)) } },
            Block::Item(_, text) => ul { li { ul { li { (inline(text)) } } } },
            Block::Commands(_, lines) => pre { (lines.join("\n")) },
        }
    }
}

fn pod_or_count(view: &View, place: usize, group: &GroupView) -> Markup {
    let only = if group.pods == 1 { view.cells(place).next() } else { None };
    html! {
        @match only {
            Some((row, _)) => span.data { (safe(&view.pod_name(&row.key))) },
            None => (count(group.pods, "pod")),
        }
    }
}

/// The letter of a cause, in the colour of the cause.
pub(super) fn chip(place: usize) -> Markup {
    html! { span.chip .(colour(place)) { (letter(place)) } }
}

fn variants<T>(word: &str, variants: &Variants<T>, shown: fn(&T) -> Markup) -> Markup {
    html! {
        @if !variants.is_empty() {
            dt { (word) }
            dd {
                @for (variant, pods) in variants.iter().take(VARIANTS) {
                    @if variants.len() > 1 { p.of { (pod_names(pods)) ":" } }
                    (shown(variant))
                }
                @if variants.len() > VARIANTS {
                    p.quiet { (variants.len() - VARIANTS) " more below, with the pods" }
                }
            }
        }
    }
}

/// The names of the pods, or how many they are.
fn pod_names(pods: &[String]) -> Markup {
    html! {
        @match pods {
            [pod] => span.data { (safe(pod)) },
            pods => (count(pods.len() as u64, "pod")),
        }
    }
}

/// The first verdict of the pod with most failures, and the names of the other pods.
fn evidence(view: &View, place: usize) -> Markup {
    let cells: Vec<_> = view.cells(place).collect();
    let example = cells.iter().find_map(|(row, cell)| cell.lane.first.as_deref().map(|first| (row, first)));
    html! {
        @if let Some((row, first)) = example {
            details.evidence {
                summary {
                    "Evidence: " span.data { (safe(&view.pod_name(&row.key))) } " at " (clock(first.us, view.axis.length()))
                }
                (verdict::shown(first))
            }
        }
        @if cells.len() > 1 {
            details {
                summary { "The " (count(cells.len() as u64, "pod")) }
                ul.pods {
                    @for (row, cell) in cells.iter().take(PODS) {
                        li { span.data { (safe(&view.pod_name(&row.key))) } " ×" (cell.lane.count) }
                    }
                    @if cells.len() > PODS { li { a href="#cases" { (cells.len() - PODS) " more" } } }
                }
            }
        }
    }
}

fn collect_details(view: &View, place: usize) -> CauseDetails {
    let (mut fixes, mut culprits): (BTreeMap<Remediation, _>, BTreeMap<String, _>) = Default::default();
    let mut why = None;
    for (row, cell) in view.cells(place) {
        let pod = view.pod_name(&row.key);
        let records: Vec<_> = cell.examples().filter_map(verdict::record).map(|(_, body)| body).collect();
        let reported = records.iter().map(|body| body.verdict.remediation.clone()).filter(|fix| !fix.is_empty());
        let known = records.iter().filter_map(|body| body.culprit.as_ref()).map(describe_culprit);
        add_pod(&mut fixes, &pod, reported.collect());
        add_pod(&mut culprits, &pod, known.collect());
        why = why.or_else(|| records.first().map(|body| body.verdict.summary.clone()));
    }
    CauseDetails { why: why.unwrap_or_default(), fixes: by_count(fixes), culprits: by_count(culprits) }
}

/// Adds a pod once to each of these texts.
fn add_pod<T: Ord>(pods: &mut BTreeMap<T, Vec<String>>, pod: &str, texts: BTreeSet<T>) {
    for text in texts {
        pods.entry(text).or_default().push(pod.to_owned());
    }
}

fn by_count<T>(pods: BTreeMap<T, Vec<String>>) -> Variants<T> {
    let mut variants: Variants<T> = pods.into_iter().collect();
    variants.sort_by_key(|(_, pods)| std::cmp::Reverse(pods.len()));
    variants
}
