//! What was made to happen by what the tracer reported of it, over all scenarios on all kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::matrix::aligned;
use super::rows::Run;

/// What stands for "no verdict".
const NONE: &str = "none";

/// Attempts by what was made and what was reported, and the scenarios of each.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<(String, String), Cell>);

#[derive(Debug, Default)]
struct Cell {
    attempts: u64,
    scenarios: BTreeSet<String>,
}

impl Table {
    /// Of all rows.
    pub(crate) fn of(runs: &[Run]) -> Self {
        let mut table = Self::default();
        for run in runs {
            for row in &run.rows {
                for reported in &row.reported {
                    let cell = table.0.entry((reported.made.clone(), reported.reported.clone())).or_default();
                    cell.attempts += u64::from(reported.attempts);
                    cell.scenarios.insert(format!("{} on {}", row.scenario, run.kernel));
                }
            }
        }
        table.0.retain(|_, cell| cell.attempts > 0);
        table
    }

    /// Cells off the diagonal that name a cause. `unexplained` and silence are no confusion: the scenario
    /// itself fails by them, unless its second run passes.
    pub(crate) fn wrong(&self) -> usize {
        self.off_diagonal().filter(|((_, reported), _)| is_definite(reported)).count()
    }

    fn off_diagonal(&self) -> impl Iterator<Item = (&(String, String), &Cell)> {
        self.0.iter().filter(|((made, reported), _)| made != reported)
    }

    /// Every cause that was made or reported; `none` first.
    fn names(&self) -> Vec<&str> {
        let all: BTreeSet<&str> =
            self.0.keys().flat_map(|(made, reported)| [made.as_str(), reported.as_str()]).collect();
        let (none, causes): (Vec<&str>, Vec<&str>) = all.into_iter().partition(|name| *name == NONE);
        [none, causes].concat()
    }

    /// The table, a line for what was made, a column for what was reported; then what is wrong in it.
    pub(crate) fn text(&self) -> String {
        if self.0.is_empty() {
            return "confusion: no attempts were judged\n".to_owned();
        }
        let names = self.names();
        let numbers = (1..=names.len()).map(|n| n.to_string());
        let heading: Vec<String> = [String::new(), "made \\ reported".to_owned()].into_iter().chain(numbers).collect();
        let lines = names.iter().enumerate().map(|(n, made)| self.line(n + 1, made, &names));
        let mut text = aligned(&std::iter::once(heading).chain(lines).collect::<Vec<_>>());
        for ((made, reported), cell) in self.off_diagonal() {
            let scenarios: Vec<&str> = cell.scenarios.iter().map(String::as_str).collect();
            let how = if is_definite(reported) { "WRONG" } else { "MISSED" };
            let _ = writeln!(
                text,
                "{how}: {made} was called {reported}, {} time(s): {}",
                cell.attempts,
                scenarios.join(", ")
            );
        }
        text + &self.summary()
    }

    fn line(&self, number: usize, made: &str, names: &[&str]) -> Vec<String> {
        let cell =
            |reported: &&str| self.0.get(&(made.to_owned(), (*reported).to_owned())).map_or(0, |cell| cell.attempts);
        let cells = names.iter().map(cell).map(|n| if n == 0 { ".".to_owned() } else { n.to_string() });
        [number.to_string(), made.to_owned()].into_iter().chain(cells).collect()
    }

    fn summary(&self) -> String {
        let all: u64 = self.0.values().map(|cell| cell.attempts).sum();
        let wrong: u64 = self.off_diagonal().map(|(_, cell)| cell.attempts).sum();
        format!("confusion: {all} attempts judged, {wrong} of them off the diagonal\n")
    }
}

/// It names a cause.
fn is_definite(reported: &str) -> bool {
    reported != NONE && reported != "unexplained"
}

#[cfg(test)]
mod tests {
    use super::super::rows::{AttemptVerdicts, Outcome, Row};
    use super::*;

    fn run(reported: &[(&str, &str, u32)]) -> Run {
        let reported = reported.iter().map(|&(made, reported, attempts)| AttemptVerdicts {
            made: made.into(),
            reported: reported.into(),
            attempts,
        });
        let row = Row { result: Outcome::Pass, reported: reported.collect(), ..Row::failed("story", None, "") };
        Run::new("6.1".into(), Ok(vec![row]))
    }

    #[test]
    fn the_diagonal_is_right_and_the_rest_is_named() {
        let table = Table::of(&[run(&[("none", "none", 100), ("a", "a", 2)]), run(&[("a", "b", 1), ("a", "a", 1)])]);
        assert_eq!(table.wrong(), 1);
        assert_eq!(Table::of(&[run(&[("a", "unexplained", 1), ("a", "none", 1)])]).wrong(), 0);
        let expected = "   made \\ reported  1    2  3
1  none             100  .  .
2  a                .    3  1
3  b                .    .  .
WRONG: a was called b, 1 time(s): story on 6.1
confusion: 104 attempts judged, 1 of them off the diagonal
";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn without_results_nothing_is_wrong_and_it_says_so() {
        let table = Table::of(&[]);
        assert_eq!((table.wrong(), table.text().as_str()), (0, "confusion: no attempts were judged\n"));
    }
}
