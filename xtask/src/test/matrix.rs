//! The results as a table: a line for each cause, Service proxy and address family, a column for each kernel, and
//! footnotes for results that are not a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::rows::{Outcome, Row, Run};

/// The line of scenarios without a cause.
const HEALTHY: &str = "(healthy: no verdict)";
const LEGEND: &str = "proxy any: no Service proxy takes part, it is the same under each\n";

pub(super) fn text(runs: &[Run]) -> String {
    let mut notes = Notes::default();
    let heading = ["cause", "proxy", "family"].map(str::to_owned).into_iter();
    let mut table = vec![heading.chain(runs.iter().map(|run| run.kernel.clone())).collect()];
    let lines: BTreeSet<_> = runs.iter().flat_map(|run| run.rows.iter().map(line)).collect();
    for line in &lines {
        let cells = runs.iter().map(|run| cell(run, line, &mut notes));
        table.push(line.iter().cloned().chain(cells).collect());
    }
    let mut text = aligned(&table) + LEGEND;
    for run in runs.iter().filter(|run| !run.programs.is_empty()) {
        let ran = run.count(Outcome::Pass) + run.count(Outcome::Fail);
        let _ = writeln!(text, "{}: {ran} ran; hooks by program type: {}", run.kernel, run.programs);
    }
    for run in runs {
        if let Some(why) = &run.broken {
            let _ = writeln!(text, "FAIL: kernel {}: {why}", run.kernel);
        }
    }
    text + &notes.text()
}

fn aligned(table: &[Vec<String>]) -> String {
    let width = |column: usize| table.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for row in table {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:0$}", width(column)));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// The first cells of a row's line: cause, proxy and family.
fn line(row: &Row) -> [String; 3] {
    let cause = row.cause.as_deref().unwrap_or(HEALTHY);
    [cause, &row.proxy, &row.family].map(str::to_owned)
}

/// The results of one line on one kernel, with the number of each.
fn cell(run: &Run, about: &[String; 3], notes: &mut Notes) -> String {
    let rows: Vec<&Row> = run.rows.iter().filter(|row| line(row) == *about).collect();
    let parts = [(Outcome::Fail, "FAIL"), (Outcome::Cannot, "cannot"), (Outcome::Pass, "pass")];
    let parts = parts.iter().filter_map(|(result, word)| {
        let these: Vec<&&Row> = rows.iter().filter(|row| row.result == *result).collect();
        let marks: BTreeSet<String> = these.iter().filter_map(|row| notes.mark(&run.kernel, row)).collect();
        let marks = marks.into_iter().collect::<String>();
        (!these.is_empty()).then(|| format!("{word} {}{marks}", these.len()))
    });
    let cell = parts.collect::<Vec<_>>().join(", ");
    if cell.is_empty() { "-".to_owned() } else { cell }
}

/// Footnotes. Each reason has one number for all its scenarios and kernels.
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

    fn row(scenario: &str, cause: Option<&str>, result: Outcome, reason: Option<&str>) -> Row {
        let (proxy, family, reason) = ("any".into(), "v4".into(), reason.map(str::to_owned));
        Row { proxy, family, result, reason, ..Row::failed(scenario, cause.map(str::to_owned), "") }
    }

    fn run(kernel: &str, rows: Vec<Row>) -> Run {
        Run::new(kernel.into(), Ok(rows))
    }

    #[test]
    fn the_table_has_results_and_their_reasons() {
        let refused = || row("refused", Some("connection_refused"), Outcome::Pass, None);
        let lacking =
            Row { proxy: "ipvs".into(), ..row("collision", Some("nodeport"), Outcome::Cannot, Some("no IPVS")) };
        let wrong = row("crowd", None, Outcome::Fail, Some("a verdict"));
        let runs = [
            Run { programs: "kprobe 2".into(), ..run("here", vec![refused(), lacking, wrong]) },
            run("6.1", vec![refused()]),
            Run { broken: Some("it did not boot".into()), ..run("sid", vec![]) },
        ];
        let expected = "\
cause                  proxy  family  here          6.1     sid
(healthy: no verdict)  any    v4      FAIL 1 [1]    -       -
connection_refused     any    v4      pass 1        pass 1  -
nodeport               ipvs   v4      cannot 1 [2]  -       -
proxy any: no Service proxy takes part, it is the same under each
here: 2 ran; hooks by program type: kprobe 2
FAIL: kernel sid: it did not boot
[1] crowd on here: a verdict
[2] collision on here: no IPVS
";
        assert_eq!(text(&runs), expected);
    }
}
