//! The forms of a klog line (k8s.io/klog/v2): header, `key="value"` pairs, Go's quoting.

use std::time::Duration;

/// A line's header: `E1120 15:50:38.197403   13560 prober.go:117] `.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Time within a quarter of an hour: what no time zone changes.
    pub(super) in_quarter: Duration,
    pub(super) pid: Option<u32>,
}

/// Seconds of a quarter of an hour: every time zone is a multiple of it away.
const QUARTER_S: u64 = 900;

/// The header, wherever in the line it begins (a log daemon puts its own before it), and what follows it.
pub(super) fn header(line: &str) -> Option<(Header, &str)> {
    let (head, rest) = line.split_once("] ")?;
    let mut words = head.split_ascii_whitespace().rev();
    let place = words.next()?;
    let pid = words.next()?.parse().ok();
    let in_quarter = in_quarter(words.next()?)?;
    let day = words.next()?;
    let severity = day.trim_start_matches(|c: char| !"IWEF".contains(c));
    let is_day = severity.len() == 5 && severity.get(1..)?.bytes().all(|it| it.is_ascii_digit());
    (is_day && place.contains(':')).then_some((Header { in_quarter, pid }, rest))
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

/// The instant nearest to `now` that lies there within its quarter of an hour. Wall clock, nanoseconds.
pub(super) fn nearest(in_quarter: Duration, now_wall_ns: u64) -> u64 {
    let quarter = QUARTER_S * 1_000_000_000;
    let at = u64::try_from(in_quarter.as_nanos()).unwrap_or_default();
    let base = now_wall_ns - now_wall_ns % quarter;
    let candidates = [base.saturating_sub(quarter), base, base.saturating_add(quarter)].map(|it| it.saturating_add(at));
    candidates.into_iter().min_by_key(|it| it.abs_diff(now_wall_ns)).unwrap_or(now_wall_ns)
}

/// The value of `key=` in a structured line, unquoted.
pub(super) fn field(text: &str, key: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let at = rest.find(key)?;
        let begins = at == 0 || rest[..at].ends_with(' ');
        let after = &rest[at + key.len()..];
        match after.strip_prefix('=').filter(|_| begins) {
            Some(value) => return Some(value_of(value)),
            None => rest = after,
        }
    }
}

fn value_of(text: &str) -> String {
    match text.strip_prefix('"') {
        Some(quoted) => unquoted(quoted),
        None => text.split(' ').next().unwrap_or_default().to_owned(),
    }
}

/// Up to the closing quote, Go's escapes undone (`strconv.Quote`).
pub(super) fn unquoted(text: &str) -> String {
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
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_behind_another() {
        for before in ["", "Nov 20 15:50:38 n1 kubelet[13560]: "] {
            let line = format!("{before}I1120 15:50:38.197403   13560 prober.go:117] Readiness probe");
            let (header, rest) = header(&line).unwrap();
            assert_eq!(header, Header { in_quarter: Duration::from_micros(338_197_403), pid: Some(13560) });
            assert_eq!(rest, "Readiness probe");
        }
        for garbage in
            ["", "] ", "x] y", "I1120 15:50 1 a:1] x", "<BODY><H1>404 Not Found</H1>", "E99 1:2:3.4 5 a:6] b"]
        {
            assert_eq!(header(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn a_time_without_date_and_zone_is_the_nearest() {
        let quarter = 900_000_000_000;
        assert_eq!(nearest(Duration::from_secs(899), 10 * quarter + 1_000_000_000), 10 * quarter - 1_000_000_000);
        assert_eq!(nearest(Duration::from_secs(1), 10 * quarter - 1), 10 * quarter + 1_000_000_000);
    }

    #[test]
    fn fields_are_unquoted() {
        let text = r#""Probe failed" pod="a/b" podUID=12-34 output="say \"no\"\n""#;
        assert_eq!(field(text, "pod").as_deref(), Some("a/b"));
        assert_eq!(field(text, "podUID").as_deref(), Some("12-34"));
        assert_eq!(field(text, "output").as_deref(), Some("say \"no\"\n"));
        assert_eq!(field(text, "odUID"), None);
    }
}
