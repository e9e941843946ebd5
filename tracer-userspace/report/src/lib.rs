//! `tracer report`: makes one page of HTML from the records of an incident.
//!
//! ```text
//! input      the files as a stream of lines
//! container_log   the formats of container runtimes around them
//! line       the fields that are read from each line
//! tally      what is kept of the records: counts, a few examples
//! page       the page: static HTML and SVG, without scripts
//! target     where the page is written
//! show       `tracer show`: prints the records one by one, as `attach` does
//! ```
//!
//! Memory does not grow with the input. Time is divided in columns that become wider. Pods beyond a limit are counted as
//! one. Of the verdicts of a pod with one cause, only the first and the last are kept.

mod container_log;
mod faults;
mod input;
mod line;
mod page;
mod show;
mod tally;
mod target;

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

pub use self::line::Fields;
pub use self::show::{ShowConfig, show};

use self::faults::Faults;
use self::faults::Problem;
use self::input::Input;
use self::tally::Tally;
use self::target::Target;
use tracer_output::sink::filter::Filter;
use tracer_terminal::error::{self, Error};

/// If the size is known: the share that is read and the remaining time. It is cut to the terminal's width.
const BAR: &str = "{bytes}/{total_bytes} [{wide_bar}] {eta}";
/// The size of a pipe is not known.
const COUNT: &str = "{spinner} {bytes} read, {bytes_per_sec}";

#[derive(Clone, Debug)]
pub struct ReportConfig {
    /// The records; `-` is stdin.
    pub files: Vec<PathBuf>,
    /// Where the page goes; absent: stdout.
    pub output_file: Option<PathBuf>,
    /// Which records are counted.
    pub filter: Filter,
}

/// Makes a page from records while they arrive.
#[derive(Debug)]
pub struct Collector {
    tally: Tally,
    target: Target,
    faults: Faults,
    names: Vec<String>,
}

impl Collector {
    /// For a page in this file; absent: stdout.
    pub fn new(output_file: Option<&Path>) -> Result<Self, Error> {
        let target = Target::new(output_file, &[])?;
        Ok(Self { target, tally: Tally::new(Filter::default()), faults: Faults::default(), names: Vec::new() })
    }

    /// Adds a line. Gives whether it is a record.
    pub fn push(&mut self, line: &[u8]) -> bool {
        line::read(line).map(|read| self.tally.push(read, line)).is_ok()
    }

    pub fn source(&mut self, name: String, missing: Option<String>) {
        if let Some(missing) = missing {
            self.faults.fault(format!("{name}: {missing}"));
        }
        self.names.push(name);
    }

    /// Writes the page. Gives one line about what is missing on the page.
    pub fn finish(mut self) -> Result<Option<String>, Error> {
        self.names.sort();
        self.write()
    }

    fn write(self) -> Result<Option<String>, Error> {
        if self.tally.records == 0 {
            return Err(no_record("report", &self.names, &self.faults));
        }
        self.target.write(&page::html(self.tally, &self.faults.reported, &self.names))?;
        Ok(self.faults.line_of_all())
    }
}

/// Makes the page of the input that can be read. The exit code is 2 if a part of it could not be read.
pub fn report(config: &ReportConfig) -> Result<u8, Error> {
    let inputs = input::open("report FILE", &config.files)?;
    let target = Target::new(config.output_file.as_deref(), &inputs)?;
    let names = inputs.iter().map(|input| input.name.clone()).collect();
    let bar = progress(&inputs);
    let mut page = Collector { target, tally: Tally::new(config.filter.clone()), faults: Faults::default(), names };
    for input in inputs {
        let input = Input { source: Box::new(bar.wrap_read(input.source)), ..input };
        read(input, &mut page.tally, &mut page.faults)?;
    }
    bar.finish_and_clear();
    let (hidden, incomplete) = (page.tally.nothing_shown(), page.faults.incomplete());
    let missing = page.write()?;
    hidden.iter().chain(&missing).for_each(|line| error::warn(line));
    Ok(if incomplete { 2 } else { 0 })
}

/// The progress of reading on stderr, if that is a terminal.
fn progress(inputs: &[Input]) -> ProgressBar {
    let total = inputs.iter().map(|input| input.size).sum::<Option<u64>>();
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = if total.is_some() { BAR } else { COUNT };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> "))
}

fn no_record(command: &str, names: &[String], faults: &Faults) -> Error {
    let why = faults.line_of_all().map(|line| format!(": {line}")).unwrap_or_default();
    Error::Usage(format!("{command} {}: no record of tracer{why}", names.join(", ")))
}

/// Counts every line of a file, as far as it can be read.
fn read(input: Input, tally: &mut Tally, faults: &mut Faults) -> Result<(), Error> {
    let name = input.name.clone();
    input.each_line(faults, |number, bytes| match (line::read(bytes), other_kind(bytes)) {
        (Err(_), Some(kind)) if number == 1 => Err(Problem::File(kind.replace("FILE", &name))),
        (line, _) => line.map(|line| tally.push(line, bytes)),
    })?;
    Ok(())
}

/// The kind of a file that has no records, by its first line, and how to read that file.
fn other_kind(first: &[u8]) -> Option<&'static str> {
    is_recording(first).then_some("a recording, which `tracer replay FILE -o json | tracer report -` makes a page of")
}

/// Whether this is the first line of a file that `tracer record` wrote.
fn is_recording(first: &[u8]) -> bool {
    first.starts_with(br#"{"format":"tracer-record""#)
}

#[cfg(test)]
mod tests;
