//! Sizes as people type them.

/// The smallest file that is worth a rotation.
const LEAST: u64 = 4 << 10;

/// `64MiB`, `1GiB`, `100MB`, `1048576`: bytes.
///
/// # Errors
/// The text is no such size, or too small for a record. The message says what to write.
pub fn size(text: &str) -> Result<u64, String> {
    const HINT: &str = "write a number with a unit, e.g. 64MiB, 500MB, 1GiB";
    let text = text.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = digits.parse().map_err(|_| HINT.to_owned())?;
    let unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(HINT.to_owned()),
    };
    let bytes = number.checked_mul(unit).ok_or("more than can be counted")?;
    if bytes < LEAST { Err("less than 4KiB: a single record may be longer".to_owned()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("64MiB").unwrap(), 64 << 20);
        assert_eq!(size("1GB").unwrap(), 1_000_000_000);
        assert_eq!(size("8192").unwrap(), 8192);
        for wrong in ["", "MiB", "64 MiB", "64mib", "-1MiB", "1.5GiB", "4095", "0", "99999999999GiB", "3é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
