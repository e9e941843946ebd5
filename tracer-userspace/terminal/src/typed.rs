//! What people type: the command line, names, times and sizes with their units.

use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction};

use crate::screen::columns;

/// Columns of help without a terminal.
const COLUMNS: usize = 80;
/// Longer lines are hard to read.
const MOST_COLUMNS: usize = 100;

/// A command line, as far as it could be read.
#[derive(Debug)]
pub enum Parsed<C> {
    Command(Box<C>),
    /// The text of `--help` or `--version`.
    Text(String),
    /// The message about wrong usage, in one line.
    Wrong(String),
}

/// clap's message with its tips, without its usage block, in one line.
pub fn without_usage(rendered: &str) -> String {
    let message = rendered.split("\nUsage:").next().and_then(|it| it.split("\nFor more information").next());
    let message = message.unwrap_or_default().trim_start_matches("error:");
    // clap's message for a wrong boolean does not name the right ones.
    let message = message.replace("value was not a boolean", "write true or false");
    let parts = message.split("\n  tip:").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.collect::<Vec<_>>().join("; tip: ")
}

pub fn help_columns() -> usize {
    columns(std::io::stdout()).map_or(COLUMNS, |columns| columns.min(MOST_COLUMNS))
}

/// The variable of a flag without its leading dashes.
pub fn variable(flag: &str) -> String {
    match flag {
        "node-name" => "NODE_NAME".to_owned(),
        _ => format!("TRACER_{}", flag.to_uppercase().replace('-', "_")),
    }
}

/// Adds the variable of each flag. For a flag without a value it is yes or no. The hidden `--markdown` has none.
pub fn with_variable(arg: Arg) -> Arg {
    let Some(variable) = arg.get_long().filter(|long| *long != "markdown").map(variable) else { return arg };
    let arg = arg.env(variable).hide_env_values(true);
    match arg.get_action() {
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    }
}

/// A variable with an empty value, as in some manifests, counts as unset.
pub fn without_empty(arg: Arg) -> Arg {
    match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(None),
        _ => arg,
    }
}

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

/// The known name that contains the typed one, else the one with the fewest typing errors, if they are few. Known names are
/// in lower case with `_`; the typed name may have upper case and `-`.
pub fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let typed = typed.to_lowercase().replace('-', "_");
    let errors = |name: &str| strsim::damerau_levenshtein(name, &typed);
    let part = known.clone().find(|name| typed.len() > 2 && name.contains(&typed));
    part.or_else(|| known.min_by_key(|name| errors(name)).filter(|name| errors(name) * 2 <= name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tips_follow_a_semicolon() {
        let rendered = "error: a 'x' found\n\n  tip: one\n  tip: two\n\nUsage: y\n";
        assert_eq!(without_usage(rendered), "a 'x' found; tip: one; tip: two");
    }

    #[test]
    fn times_are_read() {
        assert_eq!(duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(duration("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        for wrong in ["", "30", "0s", "s", "5x", "-3s", "1.5h", "99999999999d", "5 m", "3é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("64MiB").unwrap(), 64 << 20);
        assert_eq!(size("1GB").unwrap(), 1_000_000_000);
        assert_eq!(size("8192").unwrap(), 8192);
        for wrong in ["", "MiB", "64 MiB", "64mib", "-1MiB", "1.5GiB", "4095", "0", "99999999999GiB", "3é"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_or_few_errors_find_the_name() {
        let known = ["port_overlap", "conntrack", "loopback_up"];
        let nearest = |typed| nearest(typed, known.into_iter());
        assert_eq!(nearest("contrack"), Some("conntrack"));
        assert_eq!(nearest("Port-Overlap"), Some("port_overlap"));
        assert_eq!(nearest("overlap"), Some("port_overlap"));
        assert_eq!((nearest("xyz"), nearest("lo")), (None, None));
    }
}
