//! Joins the lines of an entry with an error of several lines, as those of CRI-O and of CNI plugins often are.
//!
//! klog writes an error before the other values: `"Probe errored" err=<`, a line with a tab for each line of the error,
//! and ` > probeType="Readiness" …` (`writeStringValue`, k8s.io/klog/v2/internal/serialize). Text of a pod is only in
//! lines with a tab, so it can neither end the error nor begin another entry.

use std::borrow::Cow;

/// A longer entry is not joined, bytes.
const MAX_ENTRY: usize = 32 * 1024;

#[derive(Debug, Default)]
pub(super) struct Joiner {
    /// The entry that goes on.
    begun: Option<String>,
}

impl Joiner {
    /// Takes the next line. Returns an entry, or `None` while its error goes on.
    pub(super) fn join<'a>(&mut self, line: &'a str) -> Option<Cow<'a, str>> {
        let begun = self.begun.take();
        if line.ends_with("\" err=<") && !line.starts_with(char::is_whitespace) {
            self.begun = Some(line.to_owned());
            return None;
        }
        // The reader cuts the tab of an empty line.
        let (goes_on, ends) = (line.starts_with('\t') || line.is_empty(), line.starts_with(" >"));
        let fits = |entry: &String| (goes_on || ends) && entry.len() + line.len() < MAX_ENTRY;
        let Some(mut entry) = begun.filter(fits) else { return Some(line.into()) };
        entry.push('\n');
        entry.push_str(line);
        if goes_on {
            self.begun = Some(entry);
            return None;
        }
        Some(entry.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Joiner;

    const BEGIN: &str = r#"E1120 15:50:38.197403    1234 prober.go:104] "Probe errored" err=<"#;

    fn joined(lines: &[&str]) -> Vec<String> {
        let mut joiner = Joiner::default();
        lines.iter().filter_map(|line| joiner.join(line)).map(Into::into).collect()
    }

    #[test]
    fn the_lines_of_an_error_are_one_entry() {
        let lines = [BEGIN, "\trpc error", "", "\t > pod=\"c/d\"", " > pod=\"a/b\"", "next"];
        assert_eq!(joined(&lines), [lines[..5].join("\n"), "next".to_owned()]);
    }

    #[test]
    fn other_lines_are_handed_on() {
        for lines in [["a", "\tb"], ["a", " > b"], ["\tx\" err=<", " > b"]] {
            assert_eq!(joined(&lines), lines);
        }
        assert_eq!(joined(&[BEGIN, "next", " > b"]), ["next", " > b"], "the rest of the entry is lost");
        let long = format!("\t{}", "x".repeat(40_000));
        assert_eq!(joined(&[BEGIN, &long]), [long]);
    }
}
