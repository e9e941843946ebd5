//! Joins the lines of an entry with an error or output of several lines: errors of CRI-O and of CNI plugins, messages of
//! gRPC servers, what commands print.
//!
//! klog writes an error before the other values: `"Probe errored" err=<`, a line with a tab for each line of the error,
//! and ` > probeType="Readiness" …` (`writeStringValue`, k8s.io/klog/v2/internal/serialize). The output is the last
//! value: `"Probe failed" … output=<`. Text of a pod is only in lines with a tab, so it can neither end the value nor
//! begin another entry.

use std::borrow::Cow;
use std::iter;

/// A longer entry is not joined, bytes.
const MAX_ENTRY: usize = 32 * 1024;

#[derive(Debug, Default)]
pub(super) struct Joiner {
    /// The entry that goes on.
    begun: Option<String>,
}

impl Joiner {
    /// Takes the next line. Returns the entry that ends with it, if one does. An entry that was begun and does not go on,
    /// as after a log daemon that writes its prefix before each line, comes before it as far as it is known.
    pub(super) fn join<'a>(&mut self, line: &'a str) -> impl Iterator<Item = Cow<'a, str>> + use<'a> {
        // The reader cuts the tab of an empty line.
        let (goes_on, ends) = (line.starts_with('\t') || line.is_empty(), line.starts_with(" >"));
        let fits = |entry: &mut String| (goes_on || ends) && entry.len() + line.len() < MAX_ENTRY;
        let (cut, entry) = match self.begun.take_if(fits) {
            Some(entry) => (None, Cow::from(entry + "\n" + line)),
            None => (self.begun.take(), line.into()),
        };
        let begins =
            !line.starts_with(char::is_whitespace) && ["\" err=<", " output=<"].iter().any(|it| line.ends_with(it));
        let is_joined = matches!(entry, Cow::Owned(_));
        let (begun, entry) = if begins || is_joined && goes_on { (Some(entry), None) } else { (None, Some(entry)) };
        self.begun = begun.map(Cow::into_owned);
        iter::chain(cut.map(Cow::from), entry)
    }
}

#[cfg(test)]
mod tests {
    use super::Joiner;

    const BEGIN: &str = r#"E1120 15:50:38.197403    1234 prober.go:104] "Probe errored" err=<"#;

    const OUTPUT: &str = r#"I1120 15:50:38.197403    1234 prober.go:107] "Probe failed" pod="a/b" output=<"#;

    fn joined(lines: &[&str]) -> Vec<String> {
        let mut joiner = Joiner::default();
        lines.iter().flat_map(|line| joiner.join(line)).map(Into::into).collect()
    }

    #[test]
    fn the_lines_of_an_error_are_one_entry() {
        for begin in [BEGIN, OUTPUT] {
            let lines = [begin, "\trpc error", "", "\t > pod=\"c/d\"", " > pod=\"a/b\"", "next"];
            assert_eq!(joined(&lines), [lines[..5].join("\n"), "next".to_owned()]);
        }
    }

    #[test]
    fn other_lines_are_handed_on() {
        for lines in [["a", "\tb"], ["a", " > b"], ["\tx\" err=<", " > b"]] {
            assert_eq!(joined(&lines), lines);
        }
        let cut = [BEGIN, "next", " > b", OUTPUT, "Nov 20 15:50:38 n1 kubelet[1234]: #011a", OUTPUT, BEGIN, "c"];
        assert_eq!(joined(&cut), cut, "each line for itself");
        let long = format!("\t{}", "x".repeat(40_000));
        assert_eq!(joined(&[BEGIN, &long]), [BEGIN, &long]);
    }
}
