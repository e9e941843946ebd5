//! Numbers of things, and lengths of time, in words.

use std::time::Duration;

/// `1 pod`, `2 pods`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", ending(n))
}

/// `1 packet was`, `2 packets were`.
pub fn were(n: u64, noun: &str) -> String {
    format!("{} {}", counted(n, noun), if n == 1 { "was" } else { "were" })
}

/// The plural ending of a noun.
pub const fn ending(n: u64) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// `850 ms`, `5 min 12 s`, `2 h`: the two largest units; a second one that is zero is left out.
pub fn duration(time: Duration) -> String {
    let s = time.as_secs();
    let (first, second) = match s {
        0 if time.as_millis() > 0 => return format!("{} ms", time.as_millis()),
        0..60 => return format!("{s} s"),
        60..3_600 => ((s / 60, "min"), (s % 60, "s")),
        3_600..86_400 => ((s / 3_600, "h"), (s % 3_600 / 60, "min")),
        _ => ((s / 86_400, "d"), (s % 86_400 / 3_600, "h")),
    };
    let parts = [first, second].into_iter().filter(|(n, _)| *n > 0);
    parts.map(|(n, unit)| format!("{n} {unit}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "pod")), ["0 pods", "1 pod", "2 pods"]);
        assert_eq!([0, 1, 2].map(|n| were(n, "packet")), ["0 packets were", "1 packet was", "2 packets were"]);
    }

    #[test]
    fn durations_have_units_that_fit_their_length() {
        let shown = [0, 850, 59_999, 60_000, 312_000, 7_200_000, 7_259_000, 7_500_000, 93_780_000];
        let shown = shown.map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(shown, ["0 s", "850 ms", "59 s", "1 min", "5 min 12 s", "2 h", "2 h", "2 h 5 min", "1 d 2 h"]);
    }
}
