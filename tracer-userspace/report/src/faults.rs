//! Input that could not be read. The page lists the first lines of each file and counts the rest; stderr gets one line.

use tracer_terminal::error::Error;

/// Lines of one file that are reported one by one.
const DETAILED_LINES: u64 = 10;

/// What is wrong with a line.
#[derive(Debug)]
pub(super) enum Problem {
    Line(String),
    /// The line is skipped, and this is no fault.
    Note(String),
    /// The rest of the file cannot be read.
    File(String),
    /// No file can be read.
    Command(Error),
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    file: String,
    lines_of_file: u64,
    /// The first fault, and how many there are.
    faults: (Option<String>, u64),
    /// The first note that is no fault, and how many there are.
    notes: (Option<String>, u64),
    /// The texts for the page.
    pub(crate) reported: Vec<String>,
}

impl Faults {
    pub(super) fn begin(&mut self, file: &str) {
        file.clone_into(&mut self.file);
        self.lines_of_file = 0;
    }

    pub(super) fn line(&mut self, number: usize, problem: &str) {
        let text = format!("{}:{number}: {problem}: skipped", self.file);
        self.detail(&text);
        count(&mut self.faults, text);
    }

    /// Reports a line that is skipped. Gives back a problem that ends the file.
    pub(super) fn skip(&mut self, number: usize, problem: Problem) -> Result<(), Problem> {
        match problem {
            Problem::Line(problem) => self.line(number, &problem),
            Problem::Note(note) => self.note(number, &note),
            ending => return Err(ending),
        }
        Ok(())
    }

    pub(super) fn note(&mut self, number: usize, note: &str) {
        let text = format!("{}:{number}: {note}", self.file);
        self.detail(&text);
        count(&mut self.notes, text);
    }

    fn detail(&mut self, text: &str) {
        self.lines_of_file += 1;
        if self.lines_of_file <= DETAILED_LINES {
            self.reported.push(text.to_owned());
        }
    }

    /// Ends a file: reports how many lines were not reported one by one.
    pub(super) fn end(&mut self) {
        if self.lines_of_file > DETAILED_LINES {
            let more = self.lines_of_file - DETAILED_LINES;
            self.reported.push(format!("{}: {more} more lines like these were skipped", self.file));
        }
    }

    /// Whether a part of the input is missing on the page.
    pub(super) const fn incomplete(&self) -> bool {
        self.faults.1 > 0
    }

    /// All faults, else all notes, in one line: the first one, and how many others there are.
    pub(super) fn line_of_all(&self) -> Option<String> {
        let (first, count) = if self.incomplete() { &self.faults } else { &self.notes };
        let first = first.as_ref()?;
        Some(if *count > 1 { format!("{first}; {} more like this", count - 1) } else { first.clone() })
    }

    pub(super) fn fault(&mut self, text: String) {
        self.reported.push(text.clone());
        count(&mut self.faults, text);
    }
}

fn count(kind: &mut (Option<String>, u64), text: String) {
    kind.0.get_or_insert(text);
    kind.1 += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_faults_are_few_lines() {
        let mut faults = Faults::default();
        for file in ["a", "b"] {
            faults.begin(file);
            (1..=1000).for_each(|number| faults.line(number, "not a record"));
            faults.end();
        }
        assert_eq!((faults.reported.len(), faults.incomplete()), (22, true));
        assert_eq!(faults.reported[0], "a:1: not a record: skipped");
        assert_eq!(faults.reported[21], "b: 990 more lines like these were skipped");
        assert_eq!(faults.line_of_all().as_deref(), Some("a:1: not a record: skipped; 1999 more like this"));
    }

    #[test]
    fn a_note_is_no_fault() {
        let mut faults = Faults::default();
        (7..1000).for_each(|number| faults.note(number, "a record of a newer tracer"));
        assert!(!faults.incomplete() && faults.reported.len() == 10);
        assert_eq!(faults.line_of_all().as_deref(), Some(":7: a record of a newer tracer; 992 more like this"));
        faults.line(8, "not a record");
        assert_eq!(faults.line_of_all().as_deref(), Some(":8: not a record: skipped"), "a fault has priority");
    }
}
