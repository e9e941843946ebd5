//! Settings of the output: which records, in which format, to which target.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::filter::Filter;
use super::output::Rotation;
use super::{ndjson, otlp};
use tracer_model::record::Record;

#[derive(Clone, Debug, Default)]
pub struct SinkConfig {
    pub format: Format,
    pub colour: bool,
    /// Columns of the pretty format if the output is no terminal.
    pub columns: Option<usize>,
    pub file: Option<PathBuf>,
    pub filter: Filter,
    pub attempts: bool,
    /// Print the port usage of a healthy node, too.
    pub verbose: bool,
    pub until_failure: bool,
    /// `--output-max-size`, `--output-max-files`.
    pub rotation: Option<Rotation>,
    /// How often repeated identical verdicts are printed after the first minute; zero: each of them.
    pub repeat_interval: Duration,
}

impl SinkConfig {
    /// All verdicts as they happen, without colour.
    pub fn new(format: Format, file: Option<PathBuf>) -> Self {
        Self { format, file, ..Self::default() }
    }

    /// JSON goes to a terminal, so nothing else may be printed there.
    pub fn is_json_on_terminal(&self) -> bool {
        self.format != Format::Pretty && self.file.is_none() && io::stdout().is_terminal()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Pretty,
    /// One JSON object a line.
    #[default]
    #[value(name = "json", alias = "ndjson")]
    Ndjson,
    /// One OpenTelemetry log request in JSON a line.
    Otlp,
}

/// The values of a flag as its help shows them: `pretty|json|otlp`.
pub fn choices<T: ValueEnum>() -> String {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join("|")
}

impl Format {
    pub fn line(self, record: &Record) -> Vec<u8> {
        match self {
            Self::Pretty | Self::Ndjson => ndjson::line(record),
            Self::Otlp => otlp::line(record),
        }
    }
}
