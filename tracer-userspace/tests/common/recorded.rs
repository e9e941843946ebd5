//! Recordings, and their replays in this process.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use flate2::read::GzDecoder;
use serde_json::Value;
use tracer::replay::{self, ReplayConfig};
use tracer_model::record::{Cause, Trait};
use tracer_output::sink::{Format, SinkConfig};

use super::Scratch;

/// A recording on disk, uncompressed or compressed.
pub(crate) struct Recording {
    /// `CAUSE/CELL` of a fixture, `CAUSE/KERNEL` in its place, `KERNEL/SCENARIO` of a scenario.
    pub(crate) name: String,
    path: PathBuf,
}

impl Recording {
    /// The records of a replay, those of attempts included.
    pub(crate) fn records(&self) -> Vec<String> {
        self.replayed(Format::Ndjson, None).lines().map(str::to_owned).collect()
    }

    /// The page for people, at this width or without line breaks.
    pub(crate) fn page(&self, columns: Option<usize>) -> String {
        self.replayed(Format::Pretty, columns)
    }

    pub(crate) fn observations(&self) -> String {
        fs::read_to_string(self.uncompressed(&Scratch::new())).unwrap()
    }

    fn replayed(&self, format: Format, columns: Option<usize>) -> String {
        let dir = Scratch::new();
        let out = dir.path("records");
        let output =
            SinkConfig { columns, attempts: format == Format::Ndjson, ..SinkConfig::new(format, Some(out.clone())) };
        let config = ReplayConfig { output, file: self.uncompressed(&dir), compare: None };
        let code = replay::replay(&config).expect(&self.name);
        assert_eq!(code, 0, "{}", self.name);
        fs::read_to_string(out).unwrap()
    }

    /// The file of the recording, or an uncompressed copy in `dir`.
    fn uncompressed(&self, dir: &Scratch) -> PathBuf {
        if self.path.extension().is_none_or(|end| end != "gz") {
            return self.path.clone();
        }
        let uncompressed = dir.path("observations");
        let mut unpacked = GzDecoder::new(File::open(&self.path).unwrap());
        io::copy(&mut unpacked, &mut File::create(&uncompressed).unwrap()).expect(&self.name);
        uncompressed
    }
}

/// `tests/` of the repository.
fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// The fixtures. A cause without one has the recordings of the scenario with its name.
pub(crate) fn fixtures() -> Vec<Recording> {
    let mut fixtures = below(&place().join("fixtures"), "/observations.ndjson");
    for Recording { name, path } in of_kernels() {
        let (kernel, scenario) = name.split_once('/').unwrap();
        let is_cause = Cause::from_name(scenario).is_some_and(|cause| !cause.has(Trait::AlsoOnly));
        if is_cause && !place().join("fixtures").join(scenario).exists() {
            fixtures.push(Recording { name: format!("{scenario}/{kernel}"), path });
        }
    }
    fixtures
}

pub(crate) fn of_kernels() -> Vec<Recording> {
    below(&place().join("recordings"), ".ndjson.gz")
}

/// The recordings below a folder. The name of each is its path without `end`.
fn below(place: &Path, end: &str) -> Vec<Recording> {
    let mut found = Vec::new();
    let mut folders = vec![place.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            let shown = path.strip_prefix(place).unwrap().to_str().unwrap();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = shown.strip_suffix(end) {
                found.push(Recording { name: name.to_owned(), path });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Calls `work` for each recording, on all processors. The results have the order of the recordings.
pub(crate) fn with_each<T: Send>(recordings: &[Recording], work: impl Fn(&Recording) -> T + Sync) -> Vec<T> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let share = recordings.len().div_ceil(processors).max(1);
    thread::scope(|scope| {
        let parts: Vec<_> =
            recordings.chunks(share).map(|part| scope.spawn(|| part.iter().map(&work).collect::<Vec<T>>())).collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap_or_else(|fault| std::panic::resume_unwind(fault)))
            .collect()
    })
}

pub(crate) fn parsed(record: &str) -> Value {
    serde_json::from_str(record).unwrap()
}
