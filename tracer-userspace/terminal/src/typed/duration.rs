//! Lengths of time as people type them.

use std::time::Duration;

/// `30s`, `5m`, `1h30m`, `1d`, `250ms`.
///
/// # Errors
/// The text is no such time, or the time is zero. The message says what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    const HINT: &str = "write a number with a unit, e.g. 30s, 5m, 1h30m";
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
        rest = after;
        let number: u64 = digits.parse().map_err(|_| HINT.to_owned())?;
        let unit = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_mins(1),
            "h" => Duration::from_hours(1),
            "d" => Duration::from_hours(24),
            _ => return Err(HINT.to_owned()),
        };
        let part = u32::try_from(number).ok().and_then(|n| unit.checked_mul(n)).ok_or("longer than can be counted")?;
        total = total.checked_add(part).ok_or("longer than can be counted")?;
    }
    if total.is_zero() { Err(format!("no time at all: {HINT}")) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(duration("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        for wrong in ["", "30", "0s", "s", "5x", "-3s", "1.5h", "99999999999d", "5 m", "3é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
