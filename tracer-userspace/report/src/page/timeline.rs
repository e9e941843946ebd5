//! The timeline: a row for each pod, a lane for each of its causes, the node's events on the same axis.

use maud::{Markup, html};

use super::causes::chip;
use super::view::{Cell, Row, View, colour, letter};
use super::words::{clock, count, date, duration, number, safe};

/// Rows that are shown unfolded.
const OPEN: usize = 20;
/// Rows on the page at most.
const ROWS: usize = 500;
/// Events that draw a line through all rows.
const LINES: usize = 60;
/// Height of a lane, and of the line of attempts that passed, pixels.
const HEIGHT: u64 = 20;
const PASSED: u64 = 3;
/// The lowest bar.
const LOWEST: u64 = 6;

pub(super) fn section(view: &View) -> Markup {
    let lines = overlay(view);
    let (open, folded) = view.rows.split_at(view.rows.len().min(OPEN));
    let (folded, left_out) = folded.split_at(folded.len().min(ROWS - OPEN));
    html! {
        section #timeline aria-labelledby="timeline-title" {
            h2 #timeline-title { "Timeline" }
            p.quiet {
                "Times are UTC, " (date(view.axis.span.0)) ". A bar is about " (duration(view.axis.width_us())) " of one cause"
                "; the higher, the more attempts. The letters are those of the causes."
                @if view.passed > 0 { " The line at the foot: attempts that passed." }
                @if !view.marks.is_empty() { " Dashed: events of the node." }
                @if !view.gaps.is_empty() { " Shaded: events were lost." }
                @if view.clean > 0 { " " (count(view.clean, "pod")) " without a failure are left out." }
            }
            div.timeline {
                (lines)
                div.lane.axis { (ticks(view)) }
                @for (kind, columns) in &view.marks { (events(view, kind, columns)) }
                @for row in open { (pod(view, row)) }
            }
            @if !folded.is_empty() {
                details.more {
                    summary { (count(folded.len() as u64, "more pod")) }
                    div.timeline { (lines) @for row in folded { (pod(view, row)) } }
                }
            }
            @if !left_out.is_empty() {
                p.quiet { (count(left_out.len() as u64, "more pod")) " with fewer failures are not shown." }
            }
        }
    }
}

fn ticks(view: &View) -> Markup {
    html! {
        svg.plot width="100%" height="18" aria-hidden="true" {
            @for (us, text) in view.axis.ticks() {
                text x=(view.axis.moment(us)) y="13" text-anchor=(view.axis.anchor(us)) { (text) }
            }
        }
    }
}

/// Draws times with lost events as bands, and events as lines, behind all rows.
fn overlay(view: &View) -> Markup {
    let axis = view.axis;
    let mut moments: Vec<_> = view.events.kept.iter().map(|event| axis.moment(event.us)).collect();
    moments.sort_unstable();
    moments.dedup();
    html! {
        svg.overlay width="100%" height="100%" aria-hidden="true" {
            @for (from, to) in &view.gaps { (band(&axis.moment(*from), &axis.moment(*to))) }
            @for (us, _) in axis.ticks() {
                @let x = axis.moment(us);
                line.grid x1=(x) x2=(x) y1="0" y2="100%" {}
            }
            @for x in moments.iter().take(LINES) { line.event x1=(x) x2=(x) y1="0" y2="100%" {} }
        }
    }
}

/// Draws a band between two percentages, at least as thick as a line.
fn band(from: &str, to: &str) -> Markup {
    let value = |text: &str| text.trim_end_matches('%').parse::<f64>().unwrap_or(0.0);
    let width = format!("{:.2}%", (value(to) - value(from)).max(0.4));
    html! { rect.loss x=(from) width=(width) y="0" height="100%" {} }
}

fn events(view: &View, kind: &str, columns: &[(i64, u64)]) -> Markup {
    let axis = &view.axis;
    html! {
        div.lane {
            a.name href="#events" { "node: " span.data { (safe(&kind.replace('_', " "))) } }
            svg.plot width="100%" height=(HEIGHT) role="img" aria-label=(describe(view, kind, columns)) {
                @for &(column, n) in columns {
                    svg.mark x=(axis.middle(column)) width="12" height=(HEIGHT) {
                        title { (clock(axis.begin(column), axis.length())) ": " (safe(kind)) @if n > 1 { " ×" (number(n)) } }
                        path d="M0 4 L6 10 L0 16 L-6 10 Z" {}
                    }
                }
            }
        }
    }
}

fn pod(view: &View, row: &Row) -> Markup {
    html! {
        @for (i, cell) in row.cells.iter().enumerate() {
            div.lane .first[i == 0] {
                @if i == 0 { (name(view, row)) } @else { div.name {} }
                a.key href={"#cause-" (letter(cell.group))} aria-label={"What fixes " (view.groups[cell.group].group.cause.name())} { (chip(cell.group)) }
                (lane(view, row, cell, i == 0))
            }
        }
    }
}

/// A pod's name, how many of its attempts failed, and how many attempts it had if that is known.
fn name(view: &View, row: &Row) -> Markup {
    let name = safe(&view.pod_name(&row.key));
    html! {
        div.name title=(name) {
            span.data { (name) }
            @if row.failures > 0 {
                span.count { (number(row.failures)) @if row.passed > 0 { "/" (number(row.failures + row.passed)) } }
            }
        }
    }
}

/// The bars of a cause at a pod. A bar links to its verdict if that is on the page.
fn lane(view: &View, row: &Row, cell: &Cell, first: bool) -> Markup {
    let axis = &view.axis;
    let most = cell.columns.iter().map(|&(_, n)| n).max().unwrap_or(1);
    let cause = view.groups[cell.group].group.cause.name();
    html! {
        svg.plot .(colour(cell.group)) width="100%" height=(HEIGHT) role="group" aria-label=(describe(view, cause, &cell.columns)) {
            @if first {
                @for &(column, _) in &row.passed_when {
                    @let (x, width) = axis.column(column);
                    rect.passed x=(x) width=(width) y=(HEIGHT - PASSED) height=(PASSED) {}
                }
            }
            @for &(column, n) in &cell.columns {
                @let example = cell.examples().find(|it| view.evidence.contains(&it.id) && axis.is_in(it.us, column));
                @match example {
                    Some(example) => {
                        a href={"#v" (example.id)} aria-label={"Evidence of " (cause) " at " (clock(example.us, axis.length()))} {
                            (bar(view, cause, column, n, most))
                        }
                    }
                    None => (bar(view, cause, column, n, most)),
                }
            }
        }
    }
}

fn bar(view: &View, cause: &str, column: i64, n: u64, most: u64) -> Markup {
    let axis = &view.axis;
    let (x, width) = axis.column(column);
    let room = HEIGHT - PASSED - LOWEST;
    let height = if most <= 1 { HEIGHT - PASSED - 2 } else { LOWEST + room * (n - 1) / (most - 1) };
    html! {
        rect.bar x=(x) width=(width) y=(HEIGHT - PASSED - height) height=(height) {
            title { (clock(axis.begin(column), axis.length())) ": " (cause) " ×" (number(n)) }
        }
    }
}

fn describe(view: &View, what: &str, columns: &[(i64, u64)]) -> String {
    let total: u64 = columns.iter().map(|&(_, n)| n).sum();
    let time = |column: Option<&(i64, u64)>| {
        let begin = column.map_or(0, |&(column, _)| view.axis.begin(column));
        clock(begin, view.axis.length())
    };
    format!("{}: {} times from {} to {}", safe(what), number(total), time(columns.first()), time(columns.last()))
}
