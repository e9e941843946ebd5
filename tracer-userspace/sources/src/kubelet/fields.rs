//! Parses the parts of a klog line (k8s.io/klog/v2): header, `key="value"` pairs, Go's quoting.

use std::time::Duration;

/// A line's header: `E1120 15:50:38.197403   13560 prober.go:117] `.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KlogHeader {
    /// The time within a quarter of an hour, which is the same in every time zone.
    pub(super) in_quarter: Duration,
    pub(super) pid: Option<u32>,
}

/// A quarter of an hour, in seconds: the offset of every time zone is a multiple of it.
const QUARTER_S: u64 = 900;
/// How far a line may lie ahead of the clock, which may have been set back since.
const AHEAD_NS: u64 = 2_000_000_000;

/// MicroShift writes its component before the header; `???` if it knows none.
const COMPONENTS: &[&str] = &["kubelet ", "??? "];

/// The klog header at the start of a message, and the rest of the line. A log daemon may have written its own prefix
/// before.
pub(super) fn header(line: &str) -> Option<(KlogHeader, &str)> {
    let (head, rest) = line.split_once("] ")?;
    let (head, place) = last_word(head);
    let (head, pid) = last_word(head);
    let (head, time) = last_word(head);
    let (before, day) = last_word(head);
    let is_day = |digits: &str| digits.len() == 4 && digits.bytes().all(|it| it.is_ascii_digit());
    let before = COMPONENTS.iter().find_map(|it| before.strip_suffix(it)).unwrap_or(before);
    let is_header = day.strip_prefix(['I', 'W', 'E', 'F']).is_some_and(is_day) && place.contains(':');
    let header = KlogHeader { in_quarter: in_quarter(time)?, pid: pid.parse().ok() };
    (is_header && is_at_message(before)).then_some((header, rest))
}

/// Splits off the last word: the text before it, and the word.
fn last_word(text: &str) -> (&str, &str) {
    let text = text.trim_end_matches(' ');
    text.split_at(text.rfind(' ').map_or(0, |at| at + 1))
}

/// Whether a message starts after this text: it is empty, or a log daemon's prefix (`Nov 20 15:50:38 n1 kubelet[13560]:
/// `). After the first colon, or after the tab of a further line, the text can be a pod's. Daemons may escape the tab
/// as `#011` or `\t`.
pub(super) fn is_at_message(before: &str) -> bool {
    let Some(tag) = before.strip_suffix(' ') else { return before.is_empty() };
    let is_further = || tag.contains(['\t', '\\']) || tag.contains("#011");
    !tag.is_empty() && !tag.ends_with(' ') && !tag.contains(": ") && !is_further()
}

/// `15:50:38.197403`
fn in_quarter(time: &str) -> Option<Duration> {
    let mut parts = time.split(':');
    let _hour: u64 = parts.next()?.parse().ok()?;
    let minute: u64 = parts.next()?.parse().ok()?;
    let (second, fraction) = parts.next()?.split_once('.')?;
    let micros: u32 = fraction.get(..6)?.parse().ok()?;
    let seconds = minute.checked_mul(60)?.checked_add(second.parse().ok()?)?;
    Some(Duration::new(seconds % QUARTER_S, micros * 1000))
}

/// The last instant until `now` with this time within a quarter of an hour. Wall clock, nanoseconds.
pub(super) fn last_with(in_quarter: Duration, now_wall_ns: u64) -> u64 {
    let quarter = QUARTER_S * 1_000_000_000;
    let at = u64::try_from(in_quarter.as_nanos()).unwrap_or_default();
    let latest = now_wall_ns.saturating_add(AHEAD_NS);
    latest.saturating_sub((latest % quarter + quarter - at % quarter) % quarter)
}

/// The value of a key among a structured line's pairs, unquoted. It ignores keys inside of values: an error can quote
/// text of a pod, and klog writes `err` before `pod`.
pub(super) fn field(mut pairs: &str, key: &str) -> Option<String> {
    while let Some((name, value, rest)) = pair(pairs) {
        if name == key {
            return Some(value);
        }
        pairs = rest;
    }
    None
}

/// The first pair, and the rest of the text.
fn pair(text: &str) -> Option<(&str, String, &str)> {
    let (key, rest) = text.trim_start_matches(' ').split_once('=')?;
    // This is the middle of a value with spaces and without quotes.
    if key.contains([' ', '"']) {
        return None;
    }
    let (value, rest) = value_of(rest);
    Some((key, value, rest))
}

fn value_of(text: &str) -> (String, &str) {
    if let Some(quoted) = text.strip_prefix('"') {
        return unquoted(quoted);
    }
    // A value of several lines: a tab indents each line but the last.
    if let Some(lines) = text.strip_prefix("<\n") {
        let (value, rest) = lines.split_once("\n >").unwrap_or(("<", ""));
        return (value.trim_start_matches('\t').replace("\n\t", "\n"), rest);
    }
    let (value, rest) = text.split_once(' ').unwrap_or((text, ""));
    // The end of a list or an object cannot be known (`%+v`).
    let rest = if value.contains(['[', '{']) { "" } else { rest };
    (value.to_owned(), rest)
}

/// Unquotes the text up to the closing quote (`strconv.Quote` of Go). Returns it and the rest.
pub(super) fn unquoted(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => out.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(other) => other,
                None => break,
            }),
            _ => out.push(c),
        }
    }
    (out, chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_after_the_prefix_of_a_log_daemon() {
        let of_microshift = ["kubelet ", "??? ", "Nov 20 15:50:38 n1 microshift[13560]: kubelet "];
        for before in ["", "Nov 20 15:50:38 n1 kubelet[13560]: "].into_iter().chain(of_microshift) {
            let line = format!("{before}I1120 15:50:38.197403   13560 prober.go:117] Readiness probe");
            let (header, rest) = header(&line).unwrap();
            assert_eq!(header, KlogHeader { in_quarter: Duration::from_micros(338_197_403), pid: Some(13560) });
            assert_eq!(rest, "Readiness probe");
        }
        for garbage in
            ["", "] ", "x] y", "I1120 15:50 1 a:1] x", "<BODY><H1>404 Not Found</H1>", "E99 1:2:3.4 5 a:6] b"]
        {
            assert_eq!(header(garbage), None, "{garbage}");
        }
    }

    /// The daemon writes its prefix before each line of a message.
    #[test]
    fn a_header_after_a_tab_is_ignored() {
        let header_of = |before: &str| header(&format!("{before}I1120 15:50:38.197403 7 prober.go:107] x")).is_some();
        for before in ["Nov 20 15:50:38 n1 kubelet: ", "2026-11-20T15:50:38Z stderr F ", "<30>1 2026-11-20 n1 k 7 - - "]
        {
            assert!(header_of(before), "{before}");
            for printed in ["#011", "#011 ", "#011a: ", "\t", "\t ", "\ta F ", "\tkubelet ", "\\t", "\\t ", " "] {
                assert!(!header_of(&format!("{before}{printed}")), "{before}{printed}");
            }
        }
        assert!(["x", "\t", " ", "n1 kubelet: x: ", "n1 kubelet: x "].iter().all(|before| !header_of(before)));
    }

    #[test]
    fn a_time_without_date_and_zone_is_the_last_one() {
        let (quarter, second) = (900_000_000_000, 1_000_000_000);
        assert_eq!(last_with(Duration::from_secs(899), 10 * quarter + second), 10 * quarter - second);
        assert_eq!(last_with(Duration::from_secs(1), 10 * quarter - 1), 10 * quarter + second, "a step of the clock");
        // A line that was written ten minutes ago does not become one of five minutes from now.
        assert_eq!(last_with(Duration::from_secs(0), 10 * quarter + 600 * second), 10 * quarter);
    }

    #[test]
    fn fields_are_unquoted() {
        let pairs = r#" pod="a/b" podUID=12-34 output="say \"no\"\n""#;
        assert_eq!(field(pairs, "pod").as_deref(), Some("a/b"));
        assert_eq!(field(pairs, "podUID").as_deref(), Some("12-34"));
        assert_eq!(field(pairs, "output").as_deref(), Some("say \"no\"\n"));
        assert_eq!(field(pairs, "odUID"), None);
    }

    /// klog writes values quoted, plain or on several lines; `%+v` of other types than strings may have spaces.
    #[test]
    fn a_key_inside_a_value_is_ignored() {
        for value in [r#""x pod=c/d \" pod=c/d""#, r#""x\\""#, "x", "<\n\tpod=c/d\n\t > pod=c/d\n >"] {
            let pairs = format!(r#" err={value} pod="a/b""#);
            assert_eq!(field(&pairs, "pod").as_deref(), Some("a/b"), "{pairs}");
        }
        for pairs in [r#" err="x pod=c/d"#, " err=<\n\tx pod=c/d", " err=map[a:b pod=c/d]", "x pod=c/d", "\"=a pod=c/d"]
        {
            assert_eq!(field(pairs, "pod"), None, "{pairs}");
        }
    }
}
