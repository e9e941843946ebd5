//! Numbers, times and names as text.

use std::time::Duration;

use indicatif::HumanCount;
use jiff::Timestamp;
use maud::{Markup, html};

use tracer_model::plural;
pub(super) use tracer_terminal::screen::safe;

/// `12,345`.
pub(super) fn number(n: u64) -> String {
    HumanCount(n).to_string()
}

/// `1 pod`, `2 pods`.
pub(super) fn count(n: u64, word: &str) -> String {
    format!("{} {word}{}", number(n), plural::ending(n))
}

/// With a small letter at its begin, for the middle of a sentence.
pub(super) fn uncapitalised(text: &str) -> String {
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    first.to_lowercase() + rest
}

/// The time of day: with milliseconds in a short span, with the date in a span of more than a day.
pub(super) fn clock(us: i64, span_us: i64) -> String {
    const SECOND: i64 = 1_000_000;
    let format = match span_us {
        0..60_000_000 => "%H:%M:%S%.3f",
        _ if span_us < 86_400 * SECOND => "%H:%M:%S",
        _ => "%m-%d %H:%M:%S",
    };
    at(us, format)
}

pub(super) fn date(us: i64) -> String {
    at(us, "%Y-%m-%d")
}

/// A moment in this format, UTC.
pub(super) fn at(us: i64, format: &str) -> String {
    Timestamp::from_microsecond(us).unwrap_or_default().strftime(format).to_string()
}

/// The length of a time in µs.
pub(super) fn duration(us: i64) -> String {
    plural::duration(Duration::from_micros(us.unsigned_abs()))
}

/// Our own text: the part between backticks is code, and `**` is removed.
pub(super) fn inline(text: &str) -> Markup {
    let text = safe(text).replace("**", "");
    let parts: Vec<&str> = text.split('`').collect();
    let is_paired = parts.len() % 2 == 1;
    html! {
        @if is_paired {
            @for (i, part) in parts.iter().enumerate() { @if i % 2 == 1 { code { (part) } } @else { (part) } }
        } @else { (text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown: Vec<_> = [0, 999, 1000, 12_345, 1_234_567].map(number).into();
        assert_eq!(shown, ["0", "999", "1,000", "12,345", "1,234,567"]);
        assert_eq!((count(1, "pod"), count(2, "pod")), ("1 pod".into(), "2 pods".into()));
    }

    #[test]
    fn commands_in_a_text_are_code() {
        let shown = |text| inline(text).into_string();
        assert_eq!(shown("run `ip a`, **then** <b>"), "run <code>ip a</code>, then &lt;b&gt;");
        assert_eq!(shown("a ` alone"), "a ` alone");
    }

    #[test]
    fn precision_depends_on_the_length_of_the_time() {
        let us = 1_767_323_045_678_901;
        assert_eq!(clock(us, 1), "03:04:05.678");
        assert_eq!(clock(us, 3_600_000_000), "03:04:05");
        assert_eq!(clock(us, 90_000_000_000), "01-02 03:04:05");
    }
}
