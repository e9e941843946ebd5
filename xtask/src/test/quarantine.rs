//! `tests/quarantine.yaml`: the tests that are known to be flaky, each with an owner. The list can only shrink.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::sh;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Quarantine {
    limit: usize,
    tests: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    test: String,
    owner: String,
    reason: String,
}

impl Quarantine {
    pub(super) fn read() -> Result<Self> {
        let place = sh::root().join("tests/quarantine.yaml");
        let text = std::fs::read_to_string(&place).with_context(|| place.display().to_string())?;
        Self::parse(&text).with_context(|| place.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let it: Self = serde_yaml_ng::from_str(text)?;
        anyhow::ensure!(it.tests.len() == it.limit, "{} tests, the limit is {}", it.tests.len(), it.limit);
        let lacking = it.tests.iter().find(|entry| entry.owner.trim().is_empty() || entry.reason.trim().is_empty());
        match lacking {
            Some(entry) => anyhow::bail!("{} lacks an owner or a reason", entry.test),
            None => Ok(it),
        }
    }

    /// Who looks after this test; its name may have `on KERNEL` behind it.
    pub(super) fn owner(&self, test: &str) -> Option<&str> {
        let is_it = |entry: &&Entry| test == entry.test || test.starts_with(&format!("{} on ", entry.test));
        self.tests.iter().find(is_it).map(|entry| entry.owner.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lower it with each test that leaves the quarantine; never raise it.
    const LIMIT: usize = 0;

    #[test]
    fn the_quarantine_is_in_order_and_does_not_grow() {
        let quarantine = Quarantine::read().expect("tests/quarantine.yaml");
        let more = quarantine.limit.saturating_sub(LIMIT);
        assert_eq!(more, 0, "{more} tests more than the {LIMIT} that are allowed");
    }

    #[test]
    fn an_entry_has_an_owner_and_the_limit_is_their_number() {
        let with = |limit: usize, owner: &str| {
            Quarantine::parse(&format!("limit: {limit}\ntests:\n- {{test: a, owner: '{owner}', reason: slow}}\n"))
        };
        let good = with(1, "anna").expect("a good file");
        assert_eq!((good.owner("a"), good.owner("a on 6.1"), good.owner("ab")), (Some("anna"), Some("anna"), None));
        assert!(with(1, " ").is_err() && with(0, "anna").is_err() && with(2, "anna").is_err());
    }
}
