//! The results as a table: a line per label, a column per kernel, footnotes for what did not pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::scenarios::{Outcome, Row, Run};

/// The rows about nothing wrong.
const HEALTHY: &str = "(healthy: no verdict)";

/// Prints the table and its footnotes.
pub(crate) fn print(runs: &[Run]) {
    print!("\n{}", text(runs));
}

fn text(runs: &[Run]) -> String {
    let mut notes = Notes::default();
    let mut table = vec![heading(runs)];
    for label in labels(runs) {
        let cells = runs.iter().map(|run| cell(run, &label, &mut notes));
        table.push(std::iter::once(label.clone()).chain(cells).collect());
    }
    let mut text = aligned(&table);
    for run in runs {
        if let Some(why) = &run.broken {
            let _ = writeln!(text, "FAIL: kernel {}: {why}", run.kernel);
        }
    }
    text + &notes.text()
}

fn heading(runs: &[Run]) -> Vec<String> {
    std::iter::once("label".to_owned()).chain(runs.iter().map(|run| run.kernel.clone())).collect()
}

fn name(row: &Row) -> String {
    row.label.clone().unwrap_or_else(|| HEALTHY.to_owned())
}

fn labels(runs: &[Run]) -> Vec<String> {
    let mut labels: Vec<String> = runs.iter().flat_map(|run| run.rows.iter().map(name)).collect();
    labels.sort();
    labels.dedup();
    labels
}

/// What one kernel says of one label: `pass`, or how many of which kind.
fn cell(run: &Run, label: &str, notes: &mut Notes) -> String {
    let rows: Vec<&Row> = run.rows.iter().filter(|row| name(row) == label).collect();
    let parts = [(Outcome::Fail, "FAIL"), (Outcome::Cannot, "cannot:"), (Outcome::Pass, "pass")];
    let parts = parts.iter().filter_map(|(result, word)| {
        let these: Vec<&&Row> = rows.iter().filter(|row| row.result == *result).collect();
        let marks: BTreeSet<String> = these.iter().filter_map(|row| notes.mark(&run.kernel, row)).collect();
        let marks = marks.into_iter().collect::<String>();
        (!these.is_empty()).then(|| format!("{word} {}{marks}", these.len()))
    });
    let cell = parts.collect::<Vec<_>>().join(", ");
    if cell.is_empty() { "-".to_owned() } else { cell }
}

/// Columns as wide as their widest cell.
fn aligned(table: &[Vec<String>]) -> String {
    let width = |column: usize| table.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for row in table {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:0$}", width(column)));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// Footnotes: the same reason has one number, whichever scenarios and kernels it holds for.
#[derive(Default)]
struct Notes(BTreeMap<String, Note>);

#[derive(Default)]
struct Note {
    number: usize,
    scenarios: BTreeSet<String>,
    kernels: BTreeSet<String>,
}

impl Notes {
    /// The number of a row's reason, in brackets.
    fn mark(&mut self, kernel: &str, row: &Row) -> Option<String> {
        let next = self.0.len() + 1;
        let note = self.0.entry(row.reason.clone()?).or_insert_with(|| Note { number: next, ..Note::default() });
        note.scenarios.insert(row.scenario.clone());
        note.kernels.insert(kernel.to_owned());
        Some(format!(" [{}]", note.number))
    }

    fn text(&self) -> String {
        let mut notes: Vec<_> = self.0.iter().collect();
        notes.sort_by_key(|(_, note)| note.number);
        let words = |words: &BTreeSet<String>| words.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let line = |(reason, note): (&String, &Note)| {
            format!("[{}] {} on {}: {reason}\n", note.number, words(&note.scenarios), words(&note.kernels))
        };
        notes.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scenario: &str, label: Option<&str>, result: Outcome, reason: Option<&str>) -> Row {
        Row { scenario: scenario.into(), label: label.map(str::to_owned), result, reason: reason.map(str::to_owned) }
    }

    #[test]
    fn the_table_says_what_passed_and_why_not() {
        let refused = || row("refused", Some("connection_refused"), Outcome::Pass, None);
        let lacking = row("collision", Some("nodeport"), Outcome::Cannot, Some("no IPVS"));
        let wrong = row("crowd", None, Outcome::Fail, Some("a verdict"));
        let runs = [
            Run { kernel: "here".into(), rows: vec![refused(), lacking, wrong], broken: None },
            Run { kernel: "6.1".into(), rows: vec![refused()], broken: None },
            Run { kernel: "sid".into(), rows: vec![], broken: Some("it did not boot".into()) },
        ];
        let expected = "\
label                  here           6.1     sid
(healthy: no verdict)  FAIL 1 [1]     -       -
connection_refused     pass 1         pass 1  -
nodeport               cannot: 1 [2]  -       -
FAIL: kernel sid: it did not boot
[1] crowd on here: a verdict
[2] collision on here: no IPVS
";
        assert_eq!(text(&runs), expected);
    }
}
