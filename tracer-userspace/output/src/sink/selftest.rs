//! A row of `tracer selftest` for people.

use std::fmt::Write as _;

use tracer_model::record::{FindingBody, Status};
use tracer_terminal::screen::{NARROW, Screen, Style, safe};

/// What the name of a cause has before it in `check`.
pub const PREFIX: &str = "selftest/";
/// Columns of the result, and of the longest cause.
const RESULT: usize = 7;
const CAUSE: usize = 29;

/// Result, cause, and what proved it or why it cannot be shown; under the cause where there is little room.
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
    fn columns_stand_under_each_other_whatever_the_cause() {
        let text = row(&finding(Status::Ok, "proven: kfree_skb"), screen(100, false));
        assert_eq!(text, "pass    firewall_drop                 proven: kfree_skb\n");
        assert!(Cause::ALL.iter().all(|cause| cause.name().len() < CAUSE));
    }

    #[test]
    fn long_texts_go_on_under_their_column_and_in_a_narrow_terminal_below() {
        let cannot = finding(Status::Unknown, "changes a setting of the whole machine: only in a virtual one");
        for (width, indent) in [(90, 38), (40, 2)] {
            let text = row(&cannot, screen(width, false));
            assert!(text.lines().count() > 1 && text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(indent))), "{text}");
        }
    }

    #[test]
    fn colour_only_where_it_is_wanted_and_nothing_steers_the_terminal() {
        let hostile = finding(Status::Fail, "a\u{1b}[2Jb");
        assert!(!row(&hostile, screen(100, false)).contains('\u{1b}'));
        assert!(row(&hostile, screen(100, true)).starts_with("\u{1b}[1;31mFAIL"));
    }
}
