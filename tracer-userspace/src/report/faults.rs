//! What could not be read: a line on stderr for each of the first few, a count for the rest, and all of it on the page.

use std::fmt::Display;

/// Lines of one file that are told one by one.
const TOLD: u64 = 10;

/// Who tells of it as it happens.
type Tell = Box<dyn Fn(&dyn Display)>;

/// What could not be read.
pub(crate) struct Faults {
    tell: Tell,
    file: String,
    lines_of_file: u64,
    /// What was told, for the page.
    pub(crate) told: Vec<String>,
    /// Something of the input is missing on the page.
    pub(crate) incomplete: bool,
}

impl Faults {
    /// Nothing yet.
    pub(crate) fn new(tell: impl Fn(&dyn Display) + 'static) -> Self {
        Self { tell: Box::new(tell), file: String::new(), lines_of_file: 0, told: Vec::new(), incomplete: false }
    }

    /// From here on it is about this file.
    pub(super) fn begin(&mut self, file: &str) {
        file.clone_into(&mut self.file);
        self.lines_of_file = 0;
    }

    /// A line that cannot be read.
    pub(super) fn line(&mut self, number: usize, problem: &str) {
        self.incomplete = true;
        self.lines_of_file += 1;
        if self.lines_of_file <= TOLD {
            self.note(number, &format!("{problem}: left out"));
        }
    }

    /// From this line on nothing can be read.
    pub(super) fn rest(&mut self, number: usize, problem: &str) {
        self.incomplete = true;
        self.note(number, &format!("{problem}: the rest of the file is missing"));
    }

    /// The file is not what it was.
    pub(super) fn shorter(&mut self, read: u64, size: u64) {
        self.incomplete = true;
        self.say(format!("{}: it became shorter while it was read: {read} of {size} bytes", self.file));
    }

    /// Something that is in order, and good to know.
    pub(super) fn note(&mut self, number: usize, note: &str) {
        self.say(format!("{}:{number}: {note}", self.file));
    }

    /// The end of the file: how many lines were not told of.
    pub(super) fn end(&mut self) {
        if self.lines_of_file > TOLD {
            self.say(format!("{}: {} more lines like these were left out", self.file, self.lines_of_file - TOLD));
        }
    }

    fn say(&mut self, text: String) {
        (self.tell)(&text);
        self.told.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_faults_are_few_lines() {
        let mut faults = Faults::new(|_| {});
        for file in ["a", "b"] {
            faults.begin(file);
            (1..=1000).for_each(|number| faults.line(number, "not a record"));
            faults.end();
        }
        assert_eq!((faults.told.len(), faults.incomplete), (22, true));
        assert_eq!(faults.told[0], "a:1: not a record: left out");
        assert_eq!(faults.told[21], "b: 990 more lines like these were left out");
    }

    #[test]
    fn a_note_is_no_fault() {
        let mut faults = Faults::new(|_| {});
        faults.note(7, "its last line is not whole");
        assert!(!faults.incomplete && faults.told.len() == 1);
    }
}
