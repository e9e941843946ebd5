//! The counts of all parts of a test run, and the last lines of its output.

use std::fs;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::sh;

/// A test that is known to be flaky: an entry of `tests/quarantine.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quarantined {
    /// Its name, without the kernel.
    test: String,
    owner: String,
    #[expect(dead_code, reason = "for people")]
    reason: String,
}

fn quarantine() -> Result<Vec<Quarantined>> {
    let place = sh::root().join("tests/quarantine.yaml");
    let text = fs::read_to_string(&place).with_context(|| place.display().to_string())?;
    serde_yaml_ng::from_str(&text).with_context(|| place.display().to_string())
}

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
        print!("\n{}", self.text(&quarantine()?));
        if self.failed > 0 { bail!("{} tests failed", self.failed) } else { Ok(()) }
    }

    fn text(&self, quarantine: &[Quarantined]) -> String {
        let owner = |test: &str| {
            let is_it = |it: &&Quarantined| test == it.test || test.starts_with(&format!("{} on ", it.test));
            let owner = quarantine.iter().find(is_it).map(|it| format!("in quarantine, {}", it.owner));
            owner.unwrap_or_else(|| "not in quarantine: fix it, or enter it with an owner".to_owned())
        };
        let flaky = self.flaky.iter().map(|(test, first)| format!("FLAKY: {test}: {first} ({})\n", owner(test)));
        let counts = format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped);
        flaky.chain([counts]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quarantine_does_not_grow() {
        /// Lower it with each test that leaves the quarantine; never raise it.
        const LIMIT: usize = 0;
        assert_eq!(quarantine().expect("tests/quarantine.yaml").len(), LIMIT);
    }

    #[test]
    fn a_flaky_test_is_named_with_its_owner() {
        let entry = |test: &str| Quarantined { test: test.into(), owner: "anna".into(), reason: "slow".into() };
        let mut report = Report { passed: 2, ..Report::default() };
        report.add_flaky("a on 6.1".to_owned(), "too slow\nstack");
        report.add_flaky("ab".to_owned(), "");
        let expected = "FLAKY: a on 6.1: too slow (in quarantine, anna)\n\
                        FLAKY: ab:  (not in quarantine: fix it, or enter it with an owner)\n\
                        2 passed, 0 failed, 0 skipped\n";
        assert_eq!(report.text(&[entry("a")]), expected);
    }
}
