//! Findings of `tracer doctor` for people: a block for each, the worst first.
//!
//! Commands are never wrapped: what is copied must be what is run.

use std::fmt::Write as _;

use tracer_model::record::{FindingBody, Status};
use tracer_terminal::screen::{Screen, Style, safe};

/// Columns where no terminal says otherwise.
const WIDTH: usize = 120;
/// From the worst to the best.
const ORDER: [Status; 4] = [Status::Fail, Status::Warn, Status::Unknown, Status::Ok];

/// All findings of a node.
#[must_use]
pub fn table(findings: &[FindingBody], node_name: &str, screen: Screen) -> String {
    let screen = Screen { columns: screen.columns.or(Some(WIDTH)), ..screen };
    let mut out = String::new();
    for status in ORDER {
        for finding in findings.iter().filter(|finding| finding.status == status) {
            block(&mut out, finding, screen);
        }
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let counts: Vec<_> = ORDER.iter().map(|status| format!("{} {}", count(*status), word(*status))).collect();
    screen.lines(
        &mut out,
        "",
        "",
        &screen.paint(Style::Strong, &format!("{}: {}", safe(node_name), counts.join(", "))),
    );
    out
}

/// One finding; of one that is well a line.
pub(super) fn block(out: &mut String, finding: &FindingBody, screen: Screen) {
    let status = format!("{:<7}", word(finding.status));
    let head = format!(
        "{} {}",
        screen.paint(style(finding.status), &status),
        screen.paint(Style::Strong, &safe(&finding.check))
    );
    let _ = writeln!(out, "{head}");
    if finding.status == Status::Ok {
        return wrapped(out, screen, "", &finding.observed);
    }
    wrapped(out, screen, "found", &finding.observed);
    wrapped(out, screen, "wanted", &finding.expected);
    wrapped(out, screen, "why", &finding.why);
    for (name, command) in [("fix", &finding.remediation), ("keep", &finding.persist)] {
        if let Some(command) = command {
            command_line(out, screen, name, command);
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

/// Text in lines of the terminal's width; below its word where there is little room.
fn wrapped(out: &mut String, screen: Screen, name: &str, text: &str) {
    let text = safe(text);
    if screen.is_narrow() {
        below(out, screen, name);
        return screen.lines(out, "  ", "  ", &text);
    }
    let first = screen.paint(Style::Dim, &format!("{name:>7}"));
    screen.lines(out, &format!("{first} "), "        ", &text);
}

/// The same for a command, which stays in one line.
fn command_line(out: &mut String, screen: Screen, name: &str, command: &str) {
    let unwrapped = Screen { columns: None, ..screen };
    if screen.is_narrow() {
        below(out, screen, name);
        return unwrapped.lines(out, "  ", "", &safe(command));
    }
    wrapped(out, unwrapped, name, command);
}

/// A word that its text stands below.
fn below(out: &mut String, screen: Screen, name: &str) {
    if !name.is_empty() {
        let _ = writeln!(out, " {}", screen.paint(Style::Dim, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(columns: usize, colour: bool) -> Screen {
        Screen { colour, columns: Some(columns) }
    }

    fn finding(check: &str, status: Status) -> FindingBody {
        FindingBody {
            observed: "net.ipv4.ip_forward = 0".into(),
            expected: "net.ipv4.ip_forward = 1".into(),
            why: "without it the kernel drops whatever is not for the node itself".into(),
            remediation: (status != Status::Ok).then(|| "sysctl -w net.ipv4.ip_forward=1".into()),
            ..FindingBody::new(check, status)
        }
    }

    #[test]
    fn the_worst_comes_first_and_the_sum_last() {
        let findings = [finding("a", Status::Ok), finding("b", Status::Warn), finding("c", Status::Fail)];
        let text = table(&findings, "n1", screen(100, false));
        let expected = "\
fail    c
  found net.ipv4.ip_forward = 0
 wanted net.ipv4.ip_forward = 1
    why without it the kernel drops whatever is not for the node itself
    fix sysctl -w net.ipv4.ip_forward=1
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
        let text = table(&[finding("c", Status::Fail)], "n1", screen(30, false));
        let commands = ["  sysctl -w net.ipv4.ip_forward=1"];
        let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 30 && !commands.contains(line)).collect();
        assert!(long.is_empty(), "{long:?}");
        assert!(text.contains(" fix\n  sysctl -w net.ipv4.ip_forward=1\n"), "{text}");
    }

    #[test]
    fn colour_only_where_it_is_wanted_and_nothing_steers_the_terminal() {
        let mut hostile = finding("c", Status::Fail);
        hostile.observed = "a\u{1b}[2Jb".into();
        assert!(!table(std::slice::from_ref(&hostile), "n1", screen(80, false)).contains('\u{1b}'));
        assert!(table(&[hostile], "n1", screen(80, true)).contains("\u{1b}[1;31mfail"));
    }
}
