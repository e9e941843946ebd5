//! What is counted over all parts of a run of the tests, and the lines that it ends with.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::quarantine::Quarantine;

/// Counts, and what passed only when it was retried.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    flaky: Vec<(String, String)>,
}

impl Report {
    /// One that passed when it was retried, and how it failed first.
    pub(crate) fn flaky(&mut self, test: String, first: &str) {
        self.flaky.push((test, first.lines().next().unwrap_or_default().to_owned()));
    }

    /// Prints the end of a run; an error if a test failed.
    pub(crate) fn end(&self) -> Result<()> {
        print!("\n{}", self.text());
        for (test, _) in &self.flaky {
            match Quarantine::read()?.owner(test) {
                Some(owner) => println!("quarantined: {test} ({owner})"),
                None => println!("not in quarantine: {test}: fix it, or enter it with an owner"),
            }
        }
        println!("{} passed ({} of them in a retry), {} failed", self.passed, self.flaky.len(), self.failed);
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        if self.failed > 0 { bail!("{} tests failed", self.failed) } else { Ok(()) }
    }

    /// The list of those that were retried.
    pub(super) fn text(&self) -> String {
        self.flaky.iter().fold(String::new(), |mut text, (test, first)| {
            let _ = writeln!(text, "FLAKY: {test}: {first}");
            text
        })
    }
}
