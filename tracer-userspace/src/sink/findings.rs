//! Findings of `tracer doctor` for people: a block for each, the worst first.
//!
//! Commands are never wrapped: what is copied must be what is run.

use std::fmt::Write as _;

use crate::record::{FindingBody, Status};
use crate::sink::plain;
use crate::sink::plain::{Paint, Style};

/// Columns where no terminal says otherwise.
pub const WIDTH: usize = 120;
/// Columns of the terminal.
#[must_use]
pub fn width() -> usize {
    terminal_size::terminal_size().map_or(WIDTH, |(width, _)| usize::from(width.0))
}

/// Below this the text stands under its word, not beside it.
pub(super) const NARROW: usize = 60;
/// From the worst to the best.
const ORDER: [Status; 4] = [Status::Fail, Status::Warn, Status::Unknown, Status::Ok];

/// All findings of a node.
#[must_use]
pub fn table(findings: &[FindingBody], node_name: &str, width: usize, colour: bool) -> String {
    let paint = Paint { colour };
    let mut out = String::new();
    for status in ORDER {
        for finding in findings.iter().filter(|finding| finding.status == status) {
            block(&mut out, finding, width, paint);
        }
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let counts: Vec<_> = ORDER.iter().map(|status| format!("{} {}", count(*status), word(*status))).collect();
    for line in wrap(&format!("{}: {}", plain::safe(node_name), counts.join(", ")), width.max(20)) {
        let _ = writeln!(out, "{}", paint.text(Style::Strong, &line));
    }
    out
}

/// One finding; of one that is well a line.
pub(super) fn block(out: &mut String, finding: &FindingBody, width: usize, paint: Paint) {
    let status = format!("{:<7}", word(finding.status));
    let head = format!(
        "{} {}",
        paint.text(style(finding.status), &status),
        paint.text(Style::Strong, &plain::safe(&finding.check))
    );
    let _ = writeln!(out, "{head}");
    if finding.status == Status::Ok {
        return wrapped(out, paint, "", &finding.observed, width);
    }
    wrapped(out, paint, "found", &finding.observed, width);
    wrapped(out, paint, "wanted", &finding.expected, width);
    wrapped(out, paint, "why", &finding.why, width);
    for (name, command) in [("mend", &finding.remediation), ("keep", &finding.persist)] {
        if let Some(command) = command {
            line(out, paint, name, command, width);
        }
    }
}

const fn word(status: Status) -> &'static str {
    match status {
        Status::Fail => "fail",
        Status::Warn => "warn",
        Status::Unknown => "unknown",
        Status::Ok => "ok",
    }
}

const fn style(status: Status) -> Style {
    match status {
        Status::Fail => Style::Bad,
        Status::Warn => Style::Mild,
        Status::Unknown => Style::Dim,
        Status::Ok => Style::Good,
    }
}

/// Text in lines of the terminal's width.
fn wrapped(out: &mut String, paint: Paint, name: &str, text: &str, width: usize) {
    let indent = if width < NARROW { 2 } else { 8 };
    let room = width.saturating_sub(indent).max(20);
    let mut name = name;
    for text in wrap(&plain::safe(text), room) {
        line(out, paint, name, &text, width);
        name = "";
    }
}

/// A word and a text; the text goes below it where there is little room.
fn line(out: &mut String, paint: Paint, name: &str, text: &str, width: usize) {
    let text = plain::safe(text);
    if width >= NARROW {
        let _ = writeln!(out, "{} {text}", paint.text(Style::Dim, &format!("{name:>7}")));
        return;
    }
    if !name.is_empty() {
        let _ = writeln!(out, " {}", paint.text(Style::Dim, name));
    }
    let _ = writeln!(out, "  {text}");
}

/// Breaks between words; a word that is too long stays whole.
pub(super) fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn finding(check: &str, status: Status) -> FindingBody {
        FindingBody {
            check: check.into(),
            status,
            observed: "net.ipv4.ip_forward = 0".into(),
            expected: "net.ipv4.ip_forward = 1".into(),
            why: "without it the kernel drops whatever is not for the node itself".into(),
            remediation: (status != Status::Ok).then(|| "sysctl -w net.ipv4.ip_forward=1".into()),
            persist: None,
            needs: None,
            fields: BTreeMap::new(),
        }
    }

    #[test]
    fn the_worst_comes_first_and_the_sum_last() {
        let findings = [finding("a", Status::Ok), finding("b", Status::Warn), finding("c", Status::Fail)];
        let text = table(&findings, "n1", 100, false);
        let expected = "\
fail    c
  found net.ipv4.ip_forward = 0
 wanted net.ipv4.ip_forward = 1
    why without it the kernel drops whatever is not for the node itself
   mend sysctl -w net.ipv4.ip_forward=1
warn    b
";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.ends_with("ok      a\n        net.ipv4.ip_forward = 0\nn1: 1 fail, 1 warn, 0 unknown, 1 ok\n"),
            "{text}"
        );
    }

    #[test]
    fn a_narrow_terminal_breaks_texts_but_no_commands() {
        let text = table(&[finding("c", Status::Fail)], "n1", 30, false);
        let commands = ["  sysctl -w net.ipv4.ip_forward=1"];
        let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 30 && !commands.contains(line)).collect();
        assert!(long.is_empty(), "{long:?}");
        assert!(text.contains(" mend\n  sysctl -w net.ipv4.ip_forward=1\n"), "{text}");
    }

    #[test]
    fn colour_only_where_it_is_wanted_and_nothing_steers_the_terminal() {
        let mut hostile = finding("c", Status::Fail);
        hostile.observed = "a\u{1b}[2Jb".into();
        assert!(!table(std::slice::from_ref(&hostile), "n1", 80, false).contains('\u{1b}'));
        assert!(table(&[hostile], "n1", 80, true).contains("\u{1b}[1;31mfail"));
    }
}
