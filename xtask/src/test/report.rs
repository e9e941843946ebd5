//! The counts of all parts of a test run, and the last lines of its output.

use anyhow::{Result, bail};

/// Counts, and tests that passed only in a retry.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) flaky: Vec<(String, String)>,
}

impl Report {
    /// Adds a test that passed in a retry, and the reason of its first failure.
    pub(crate) fn add_flaky(&mut self, test: String, first: &str) {
        self.flaky.push((test, first.lines().next().unwrap_or_default().to_owned()));
    }

    /// Prints the end of a run. Returns an error if a test failed.
    pub(crate) fn end(&self) -> Result<()> {
        print!("\n{}", self.text());
        if self.failed > 0 { bail!("{} tests failed", self.failed) } else { Ok(()) }
    }

    fn text(&self) -> String {
        let flaky = self.flaky.iter().map(|(test, first)| format!("FLAKY: {test}: {first} (fix it)\n"));
        let counts = format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped);
        flaky.chain([counts]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flaky_test_is_named_with_its_first_failure() {
        let mut report = Report { passed: 2, ..Report::default() };
        report.add_flaky("a on 6.1".to_owned(), "too slow\nstack");
        let expected = "FLAKY: a on 6.1: too slow (fix it)\n2 passed, 0 failed, 0 skipped\n";
        assert_eq!(report.text(), expected);
    }
}
