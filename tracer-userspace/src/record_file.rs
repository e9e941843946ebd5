//! A recording: the stream of observations as NDJSON, between a header and an end marker.
//!
//! ```text
//! {"format":"tracer-record","version":1,"tracer":"0.1.0","prober_pids":[812],"pods":23}
//! {"time_boot_ns":1,"observation":"start",…}
//! …
//! {"end":true,"observations":4711,"time_boot_ns":99}
//! ```
//!
//! A recording without the end marker is incomplete, after a full disk, a crash, or an interrupted copy.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::engine::AtStart;
use tracer_model::event::Observation;
use tracer_terminal::error::{self, Error, os_message};

pub const FORMAT: &str = "tracer-record";
/// The version of the format: a reader accepts only its own.
pub const VERSION: u32 = 1;

/// The most bytes of a recording: a busy node would fill its disk in some hours.
const LARGEST: u64 = 1 << 30;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Header {
    /// Always `tracer-record`.
    pub format: String,
    pub version: u32,
    /// Version of the tracer that wrote it.
    #[serde(default)]
    pub tracer: String,
    #[serde(flatten)]
    pub at_start: AtStart,
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
pub struct End {
    /// Always true.
    pub end: bool,
    pub observations: u64,
    /// When the stream ended. A replay decides the open attempts at this time.
    pub time_boot_ns: u64,
}

/// Writes a recording. After a failed write the recording ends, and the run continues without it.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    writer: Option<BufWriter<W>>,
    /// The line that is written now.
    buffer: Vec<u8>,
    name: String,
    observations: u64,
    /// Bytes until the recording ends.
    left: u64,
    failed: bool,
}

/// Creates the file of a recording with mode 0600. Never overwrites a file.
pub fn create(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        // For a folder, reports EISDIR instead of "file exists".
        .map_err(|error| if path.is_dir() { io::Error::from_raw_os_error(libc::EISDIR) } else { error })
        .map_err(|error| Error::file("record FILE", path, error))
}

impl<W: Write> Recorder<W> {
    pub fn new(writer: W, name: String, at_start: AtStart) -> Self {
        let writer = Some(BufWriter::with_capacity(1 << 16, writer));
        let mut recorder = Self { writer, buffer: Vec::new(), name, observations: 0, left: LARGEST, failed: false };
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            tracer: env!("CARGO_PKG_VERSION").to_owned(),
            at_start,
        };
        recorder.line(&header);
        recorder
    }

    pub fn push(&mut self, observation: &Observation) {
        self.line(observation);
        self.observations += u64::from(self.writer.is_some());
        if self.left == 0 && self.writer.is_some() {
            self.close(observation.time_boot_ns);
            self.writer = None;
            self.failed = true;
            error::report(&format!(
                "record {}: it has {} MiB: the recording ends here and is not whole, but the run continues",
                self.name,
                LARGEST >> 20
            ));
        }
    }

    pub fn flush(&mut self) {
        if let Some(Err(error)) = self.writer.as_mut().map(Write::flush) {
            self.fail(&error);
        }
    }

    /// Writes the end marker. Returns `false` if the recording is incomplete.
    #[must_use]
    pub fn finish(mut self, time_boot_ns: u64) -> bool {
        self.close(time_boot_ns);
        !self.failed
    }

    fn close(&mut self, time_boot_ns: u64) {
        let observations = self.observations;
        self.line(&End { end: true, observations, time_boot_ns });
        self.flush();
    }

    fn line(&mut self, value: &impl Serialize) {
        let Some(writer) = &mut self.writer else { return };
        self.buffer.clear();
        let written = serde_json::to_writer(&mut self.buffer, value).map_err(io::Error::from);
        self.buffer.push(b'\n');
        self.left = self.left.saturating_sub(self.buffer.len() as u64);
        if let Err(error) = written.and_then(|()| writer.write_all(&self.buffer)) {
            self.fail(&error);
        }
    }

    /// Reports the error and ends the recording. The run continues.
    fn fail(&mut self, error: &io::Error) {
        self.failed = true;
        // `into_parts` discards the buffer. Dropping the writer would try to write it again.
        if let Some(writer) = self.writer.take() {
            drop(writer.into_parts());
        }
        error::report(&format!(
            "record {}: {}: the recording ends here, but the run continues; `tracer replay` can read the recorded part",
            self.name,
            os_message(error)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::ObservationKind;

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_recording_has_header_and_end() {
        let mut bytes = Vec::new();
        let mut recorder = Recorder::new(&mut bytes, "x".into(), AtStart { prober_pids: vec![7], pods: 2 });
        recorder.push(&Observation { time_boot_ns: 5, kind: ObservationKind::Tick });
        assert!(recorder.finish(9));
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with(r#"{"format":"tracer-record","version":1,"#) && lines[0].contains(r#""pods":2"#));
        assert_eq!(lines[1], r#"{"time_boot_ns":5,"observation":"tick"}"#);
        assert_eq!(lines[2], r#"{"end":true,"observations":1,"time_boot_ns":9}"#);
    }

    #[test]
    fn a_recording_that_is_too_large_ends_with_its_marker() {
        let mut bytes = Vec::new();
        let mut recorder = Recorder::new(&mut bytes, "x".into(), AtStart::default());
        recorder.left = 60;
        for time_boot_ns in [5, 6, 7] {
            recorder.push(&Observation { time_boot_ns, kind: ObservationKind::Tick });
        }
        assert!(!recorder.finish(9), "it is not whole");
        let text = String::from_utf8(bytes).unwrap();
        let last: End = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((text.lines().count(), last.observations, last.time_boot_ns), (4, 2, 6));
    }

    #[test]
    fn a_full_disk_ends_the_recording_only() {
        let mut recorder = Recorder::new(Full, "x".into(), AtStart::default());
        recorder.flush();
        recorder.push(&Observation { time_boot_ns: 5, kind: ObservationKind::Tick });
        assert!(!recorder.finish(9));
    }
}
