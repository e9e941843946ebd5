//! A row of `tracer selftest` as text.

use std::fmt::Write as _;

use tracer_model::record::{FindingBody, Status};
use tracer_terminal::screen::{NARROW, Screen, Style, safe};

/// The prefix of the cause's name in `check`.
pub const PREFIX: &str = "selftest/";
/// Columns of the result, and of the longest cause.
const RESULT: usize = 7;
const CAUSE: usize = 29;

/// Result, cause, and its evidence or why it cannot be shown. On a narrow screen, this text is below the cause.
pub fn row(finding: &FindingBody, screen: Screen) -> String {
    let (word, style) = result(finding.status);
    let cause = safe(finding.check.strip_prefix(PREFIX).unwrap_or(&finding.check));
    let result = screen.paint(style, &format!("{word:<RESULT$}"));
    let text = safe(&finding.observed);
    let mut out = String::new();
    if screen.columns.is_some_and(|columns| columns < NARROW + CAUSE) {
        let _ = writeln!(out, "{result} {}", screen.paint(Style::Strong, &cause));
        screen.lines(&mut out, "  ", "  ", &text);
    } else {
        let cause = screen.paint(Style::Strong, &format!("{cause:<CAUSE$}"));
        screen.lines(&mut out, &format!("{result} {cause} "), &" ".repeat(RESULT + CAUSE + 2), &text);
    }
    out
}

const fn result(status: Status) -> (&'static str, Style) {
    match status {
        Status::Ok => ("pass", Style::Good),
        Status::Fail => ("FAIL", Style::Bad),
        Status::Warn => ("warn", Style::Mild),
        Status::Unknown => ("cannot", Style::Dim),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::record::Cause;

    const fn screen(columns: usize, colour: bool) -> Screen {
        Screen { colour, columns: Some(columns) }
    }

    fn finding(status: Status, observed: &str) -> FindingBody {
        FindingBody { observed: observed.into(), ..FindingBody::new("selftest/firewall_drop", status) }
    }

    #[test]
    fn every_cause_fits_its_column() {
        let text = row(&finding(Status::Ok, "proven: kfree_skb"), screen(100, false));
        assert_eq!(text, "pass    firewall_drop                 proven: kfree_skb\n");
        assert!(Cause::ALL.iter().all(|cause| cause.name().len() < CAUSE));
    }

    #[test]
    fn long_texts_are_indented_to_their_column_or_below_the_cause() {
        let cannot = finding(Status::Unknown, "changes a setting of the whole machine: only in a virtual one");
        for (width, indent) in [(90, 38), (40, 2)] {
            let text = row(&cannot, screen(width, false));
            assert!(text.lines().count() > 1 && text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(indent))), "{text}");
        }
    }

    #[test]
    fn colour_is_optional_and_escape_sequences_are_removed() {
        let hostile = finding(Status::Fail, "a\u{1b}[2Jb");
        assert!(!row(&hostile, screen(100, false)).contains('\u{1b}'));
        assert!(row(&hostile, screen(100, true)).starts_with("\u{1b}[1;31mFAIL"));
    }
}
