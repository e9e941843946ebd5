//! Reads a recording line by line; an error names the line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;

use crate::record_file::{End, FORMAT, Header, VERSION};
use tracer_model::event::{Observation, ObservationKind};
use tracer_model::plural::counted;
use tracer_model::record::SCHEMA;
use tracer_output::gzip;
use tracer_terminal::error::{Error, json_problem};

/// The longest line that is read. The longest observation is a list of pods.
const LINE_MAX: u64 = 256 << 20;

/// How a record begins, also behind the prefix of a container runtime.
const RECORD: &[u8] = br#"{"schema":"tracer/"#;

/// The content of a line.
pub(super) enum Item {
    Observation(Box<Observation>),
    End(End),
    /// The recording ends without an end marker.
    Cut(Error),
}

pub(super) struct Reader {
    input: Box<dyn BufRead>,
    name: String,
    /// The number of the last line, from 1.
    pub(super) line: usize,
    bytes: Vec<u8>,
    pub(super) observations: u64,
    /// How many observations have a kind that this version does not know.
    pub(super) skipped: u64,
    pub(super) last_time_boot_ns: u64,
}

impl Reader {
    /// Opens a recording (`-`: stdin), which may be compressed with gzip, and checks its header.
    pub(super) fn open(path: &Path) -> Result<(Self, Header), Error> {
        let failed = |error| Error::file("replay FILE", path, error);
        let unpacked = match path == Path::new("-") {
            true => gzip::unpack(io::stdin()),
            false => gzip::unpack(File::open(path).map_err(failed)?),
        };
        let input = Box::new(BufReader::with_capacity(1 << 16, unpacked.map_err(failed)?.source));
        let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
        Self::over(input, name)
    }

    /// Reads a recording from this input and checks its header.
    pub(super) fn over(input: Box<dyn BufRead>, name: String) -> Result<(Self, Header), Error> {
        let mut reader =
            Self { input, name, line: 0, bytes: Vec::new(), observations: 0, skipped: 0, last_time_boot_ns: 0 };
        let header = reader.header()?;
        Ok((reader, header))
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> Error {
        Error::Input { file: self.name.clone(), line: self.line, problem: problem.into() }
    }

    /// The next item. Skips observations of kinds that this version does not know.
    pub(super) fn next(&mut self) -> Result<Item, Error> {
        loop {
            match self.next_line()? {
                Item::Observation(observation) if observation.kind == ObservationKind::Unknown => self.skipped += 1,
                item => return Ok(item),
            }
        }
    }

    fn next_line(&mut self) -> Result<Item, Error> {
        let is_complete = self.read_line()?;
        if self.bytes.is_empty() {
            return Ok(Item::Cut(self.cut()));
        }
        if self.bytes.starts_with(br#"{"end""#)
            && let Ok(end) = serde_json::from_slice::<End>(&self.bytes)
        {
            return self.end(end).map(Item::End);
        }
        match serde_json::from_slice::<Observation>(&self.bytes) {
            Ok(observation) => {
                self.observations += 1;
                self.last_time_boot_ns = self.last_time_boot_ns.max(observation.time_boot_ns);
                Ok(Item::Observation(Box::new(observation)))
            }
            Err(_) if !is_complete => Ok(Item::Cut(self.cut())),
            Err(error) => Err(self.error(format!("not an observation: {}", json_problem(&error)))),
        }
    }

    /// Checks the end marker's count, and that nothing follows.
    fn end(&mut self, end: End) -> Result<End, Error> {
        if end.observations != self.observations {
            return Err(self.error(format!(
                "the end marker counts {} observations, but there are {}: lines are missing or were added",
                end.observations, self.observations
            )));
        }
        self.read_line()?;
        if self.bytes.is_empty() { Ok(end) } else { Err(self.error("text after the end marker")) }
    }

    fn cut(&self) -> Error {
        self.error(format!("cut in the middle after {}", counted(self.observations, "observation")))
    }

    /// Reads one line, which is empty at the end of the input. Returns `false` if its newline is missing.
    fn read_line(&mut self) -> Result<bool, Error> {
        self.bytes.clear();
        self.line += 1;
        let read = self.input.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.bytes);
        match read {
            Ok(n) if n as u64 == LINE_MAX => Err(self.error("a line of more than 256 MiB: not a recording")),
            Ok(_) => Ok(self.bytes.last() == Some(&b'\n')),
            Err(error) => Err(Error::file("replay FILE", &self.name, error)),
        }
    }

    /// Reads the first line.
    fn header(&mut self) -> Result<Header, Error> {
        self.read_line()?;
        if self.bytes.is_empty() {
            return Err(self.error("empty: not a recording of `tracer record`"));
        }
        let value: Value = serde_json::from_slice(&self.bytes).unwrap_or_default();
        if value["schema"] == SCHEMA || self.bytes.windows(RECORD.len()).any(|window| window == RECORD) {
            return Err(
                self.error("these are records: `tracer show FILE`; a recording is made by `tracer record FILE`")
            );
        }
        if value["format"] != FORMAT {
            return Err(self.error("not a recording of `tracer record`: its first line is no header"));
        }
        if value["version"] != VERSION {
            let version = &value["version"];
            return Err(self.error(format!(
                "a recording of version {version}; this tracer ({}) reads version {VERSION}",
                env!("CARGO_PKG_VERSION")
            )));
        }
        serde_json::from_value(value)
            .map_err(|error| self.error(format!("its header is damaged: {}", json_problem(&error))))
    }
}
