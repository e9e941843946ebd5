//! Handles failed writes: records wait for a file that tracer rotates; any other file is replaced by stdout.

use std::io::{self, Seek as _};
use std::path::Path;
use std::time::{Duration, Instant};

use super::target::{chunk_of, stdout};
use super::{BACKLOG, Output};
use tracer_model::plural::{counted, were};
use tracer_terminal::error::{self, os_message};

/// The shortest time between two reports that a file cannot be written.
const REPORT_EVERY: Duration = Duration::from_secs(60);

impl Output {
    /// Handles an error of the target.
    pub(super) fn fail(&mut self, error: &io::Error) {
        if self.on_path {
            return if self.rotation.is_some() && self.live { self.wait(error) } else { self.fall_back(error) };
        }
        self.closed = true;
        if error.kind() == io::ErrorKind::BrokenPipe {
            return;
        }
        self.failed = true;
        let records = were(self.unwritten() as u64, "record");
        error::report(&format!("stdout: {}: {records} not written", os_message(error)));
    }

    /// Lets the records wait until the file can be written again.
    pub(super) fn wait(&mut self, error: &io::Error) {
        self.rewind();
        self.stuck = true;
        let trouble = self.describe(error);
        if self.trouble.is_none() && self.reported.is_none_or(|reported| reported.elapsed() > REPORT_EVERY) {
            self.reported = Some(Instant::now());
            let room = BACKLOG >> 20;
            error::report(&format!(
                "{trouble}: records wait ({room} MiB, more are dropped and counted) and are tried again each second; verdicts and metrics go on"
            ));
        }
        self.trouble = Some(trouble);
    }

    fn describe(&self, error: &io::Error) -> String {
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        format!("--output-file {path}: {}", os_message(error))
    }

    /// Goes back to the end of the last record that is completely written.
    pub(super) fn rewind(&mut self) {
        let start = self.end_of_whole();
        self.cut_torn(self.written - start);
        self.written = start;
    }

    /// Records of `pending` that are completely written.
    pub(super) fn whole(&self) -> usize {
        self.ends.partition_point(|&end| end <= self.written)
    }

    /// Where the last record of `pending` that is completely written ends.
    pub(super) fn end_of_whole(&self) -> usize {
        self.whole().checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Switches from the file to stdout, from the first record that is not complete in the file.
    pub(super) fn fall_back(&mut self, error: &io::Error) {
        self.rewind();
        let again = match error.kind() {
            _ if !self.live => "",
            io::ErrorKind::BrokenPipe => "; start its reader, then SIGHUP opens it again",
            _ => "; make room, then SIGHUP opens the file again",
        };
        let trouble = self.describe(error);
        error::report(&format!("{trouble}: the records from here on go to stdout{again}"));
        self.trouble = Some(trouble);
        self.switch_to_stdout();
    }

    /// At the end of the run, the records that wait for the file go to stdout.
    pub(super) fn hand_over(&mut self) {
        let Some(trouble) = self.trouble.as_deref().filter(|_| self.on_path) else { return };
        let waited = counted(self.unwritten() as u64, "record");
        error::report(&format!("{trouble}: the waiting records go to stdout: {waited}"));
        self.stuck = false;
        self.switch_to_stdout();
    }

    pub(super) fn switch_to_stdout(&mut self) {
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

    /// Cuts an incomplete record off the file's end, unless another process has appended since.
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
