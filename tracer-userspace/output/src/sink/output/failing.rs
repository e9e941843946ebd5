//! What cannot be written: a file that the tracer rotates is waited for, any other hands over to stdout.

use std::io::{self, Seek as _};
use std::path::Path;
use std::time::{Duration, Instant};

use super::target::{chunk_of, stdout};
use super::{BACKLOG, Output};
use tracer_model::plural::{counted, were};
use tracer_terminal::error::{self, os_message};

/// How often it is reported that a file cannot be written, if it works in between.
const REPORT_EVERY: Duration = Duration::from_secs(60);

impl Output {
    /// The target takes no more.
    pub(super) fn fail(&mut self, error: &io::Error) {
        if self.on_path && self.rotation.is_some() && self.live {
            self.wait(error);
            return;
        }
        if self.on_path {
            self.fall_back(error);
            return;
        }
        self.closed = true;
        if error.kind() == io::ErrorKind::BrokenPipe {
            return;
        }
        self.failed = true;
        error::report(&format!(
            "stdout: {}: {} not written",
            os_message(error),
            were(self.unwritten() as u64, "record")
        ));
    }

    /// Records wait until there is room again.
    pub(super) fn wait(&mut self, error: &io::Error) {
        self.rewind();
        self.stuck = true;
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        let trouble = format!("--output-file {path}: {}", os_message(error));
        if self.trouble.is_none() && self.reported.is_none_or(|reported| reported.elapsed() > REPORT_EVERY) {
            self.reported = Some(Instant::now());
            let room = BACKLOG >> 20;
            error::report(&format!(
                "{trouble}: records wait ({room} MiB, more are dropped and counted) and are tried again each second; verdicts and metrics go on"
            ));
        }
        self.trouble = Some(trouble);
    }

    /// Back to the end of the last record that is whole in the file.
    pub(super) fn rewind(&mut self) {
        let start = self.whole().checked_sub(1).map_or(0, |last| self.ends[last]);
        self.cut_torn(self.written - start);
        self.written = start;
    }

    /// Records of `pending` that are wholly written.
    pub(super) fn whole(&self) -> usize {
        self.ends.partition_point(|&end| end <= self.written)
    }

    /// From the file to stdout, beginning with the first record that is not whole in the file.
    pub(super) fn fall_back(&mut self, error: &io::Error) {
        self.rewind();
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        let again = if self.live { "; make room, then SIGHUP opens the file again" } else { "" };
        error::report(&format!(
            "--output-file {path}: {}: the records from here on go to stdout{again}",
            os_message(error)
        ));
        self.turn_to_stdout();
    }

    /// At the end nothing waits for room any more: what was decided goes to stdout.
    pub(super) fn hand_over(&mut self) {
        let Some(trouble) = self.trouble.as_deref().filter(|_| self.on_path) else { return };
        let waited = counted(self.unwritten() as u64, "record");
        error::report(&format!("{trouble}: what waited goes to stdout: {waited}"));
        self.stuck = false;
        self.turn_to_stdout();
    }

    fn turn_to_stdout(&mut self) {
        self.failed = true;
        self.on_path = false;
        match stdout() {
            Ok(file) => {
                self.chunk = chunk_of(&file);
                self.file = file;
            }
            Err(_) => self.closed = true,
        }
    }

    /// Takes half a record off the file's end, if nobody has appended since.
    pub(super) fn cut_torn(&mut self, torn: usize) {
        let (Ok(position), Ok(meta)) = (self.file.stream_position(), self.file.metadata()) else { return };
        if torn > 0 && meta.is_file() && position == meta.len() {
            let whole = position.saturating_sub(torn as u64);
            if self.file.set_len(whole).is_ok() {
                self.size = whole;
            }
        }
    }
}
