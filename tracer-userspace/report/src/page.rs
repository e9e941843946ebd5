//! The page: HTML and SVG without scripts, so that it can be mailed, stored and opened anywhere. It loads nothing, and its
//! Content-Security-Policy forbids it.

mod axis;
mod causes;
mod lists;
mod timeline;
mod verdict;
mod view;
mod words;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, PreEscaped, html};
use ring::digest;

use self::view::View;
use self::words::{clock, count, date, duration, number, safe, uncapitalised};
use super::tally::Tally;
use super::target::BEGINS;
use tracer_model::record::Cause;

const STYLE: &str = include_str!("page/style.css");

pub(super) fn html(tally: Tally, faults: &[String], names: &[String]) -> String {
    let view = View::new(tally, faults);
    let details = causes::details(&view);
    let body = html! {
        (header(&view))
        main {
            (causes::table(&view, &details))
            (timeline::section(&view))
            (causes::section(&view, &details))
            (lists::cases(&view))
            (lists::findings(&view))
            (lists::events(&view))
            (notes(&view))
            (lists::sources(&view, names))
        }
    };
    format!("{BEGINS}\n{}\n", document(&view, &body).into_string())
}

fn document(view: &View, body: &Markup) -> Markup {
    html! {
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                meta name="color-scheme" content="light dark";
                title { "tracer report: " (safe(&headline(view))) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
}

/// Allows only our own style, by its hash.
fn policy() -> String {
    let hash = STANDARD.encode(digest::digest(&digest::SHA256, STYLE.as_bytes()));
    format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'")
}

fn header(view: &View) -> Markup {
    let (from, to) = view.axis.span;
    let length = view.axis.length();
    html! {
        header {
            p.eyebrow {
                strong { "tracer report" } " · " (nodes(view)) " · "
                time { (date(from)) " " (clock(from, length)) "–" (clock(to, length)) " UTC" } " (" (duration(length)) ")"
            }
            h1 { (safe(&headline(view))) }
            @if let Some((first, others)) = view.notes.split_first() {
                p.notes {
                    (safe(first))
                    @if !others.is_empty() { " · " a href="#notes" { (count(others.len() as u64, "more note")) } }
                }
            }
        }
    }
}

fn nodes(view: &View) -> String {
    match view.nodes.as_slice() {
        [node] => safe(node),
        nodes => count(nodes.len() as u64, "node"),
    }
}

/// One sentence: how many attempts failed, and why.
fn headline(view: &View) -> String {
    let passed = if view.passed > 0 { format!(" {} passed.", number(view.passed)) } else { String::new() };
    let misleading = format!("{} did not fail and left a misleading trace", number(view.misleading));
    match (view.failures, view.misleading) {
        (0, _) if view.hidden.is_some() => format!("{}.", view.hidden.as_deref().unwrap_or_default()),
        (0, 0) => format!("No attempt failed.{passed}"),
        (0, _) => format!("No attempt failed; {misleading}."),
        (failures, _) => {
            let of = view.attempts.map(|all| format!("{} of {}", number(failures), count(all, "attempt")));
            let reasons = reasons(view);
            let colon = if reasons.starts_with("because ") { "" } else { ":" };
            format!("{} failed{colon} {reasons}.", of.unwrap_or_else(|| count(failures, "attempt")))
        }
    }
}

/// The worst causes by their titles. Those that are over have the time of their last failure.
fn reasons(view: &View) -> String {
    const NAMED: usize = 3;
    let groups: Vec<_> = view.groups.iter().filter(|it| !it.group.noise).collect();
    let alone = groups.len() == 1;
    let named = groups.iter().take(NAMED).map(|it| {
        let times = if alone { String::new() } else { format!("{} ", number(it.count)) };
        let until =
            if it.is_over { format!(" (last at {})", clock(it.span.1, view.axis.length())) } else { String::new() };
        match it.group.cause {
            Cause::Unexplained => format!("{times}unexplained{until}"),
            cause => format!("{times}because {}{until}", uncapitalised(cause.title())),
        }
    });
    let others: u64 = groups.iter().skip(NAMED).map(|it| it.count).sum();
    let rest =
        (others > 0).then(|| format!("{} by {}", number(others), count((groups.len() - NAMED) as u64, "other cause")));
    named.chain(rest).collect::<Vec<_>>().join("; ")
}

/// All notes, if there are more than the one in the head of the page.
fn notes(view: &View) -> Markup {
    html! {
        @if view.notes.len() > 1 {
            section #notes aria-labelledby="notes-title" {
                h2 #notes-title { "Notes on these numbers" }
                ul.notes { @for note in &view.notes { li { (safe(note)) } } }
            }
        }
    }
}
