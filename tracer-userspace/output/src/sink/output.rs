//! Writes the bytes to stdout or `--output-file`.
//!
//! A reader that stops reading must not stop tracer, so a live run never blocks here. Records wait in a bounded buffer;
//! when it is full, records are dropped and counted. If a file cannot be written any more (a full disk), records go to
//! stdout instead, and the run ends with exit code 2. If tracer rotates the file itself, records wait in the buffer until
//! the file can be written again. Those that still wait at the end go to stdout.

mod failing;
mod rotate;
mod target;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use self::rotate::Rotation;
use self::target::{chunk_of, open_file, prepare_for_rotation, ready, stdout};
use tracer_model::plural::were;
use tracer_terminal::error::{self, Error, os_message};
use tracer_terminal::screen::columns;
use tracer_terminal::stderr;

/// Bytes that may wait for a slow reader.
const BACKLOG: usize = 8 << 20;
/// Bytes of the buffer that are kept once it is empty.
const KEPT: usize = 1 << 20;
/// How long the end of a live run waits for a slow reader.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Output {
    file: File,
    /// `--output-file`; `None`: stdout was asked for.
    path: Option<PathBuf>,
    /// Records still go to `path`, not to stdout.
    on_path: bool,
    /// Writes never block.
    live: bool,
    chunk: usize,
    pending: Vec<u8>,
    /// How much of `pending` is written.
    written: usize,
    /// Ends of the records in `pending`.
    ends: Vec<usize>,
    dropped: u64,
    /// Records dropped since the start.
    dropped_so_far: u64,
    closed: bool,
    failed: bool,
    rotation: Option<Rotation>,
    /// Bytes in the file, where it is rotated.
    size: u64,
    /// Writing failed, and is retried in the next second.
    stuck: bool,
    /// Why records wait, or go to stdout instead, since the last failure.
    trouble: Option<String>,
    reported: Option<Instant>,
}

impl Output {
    /// Opens the target. `live`: writes never block.
    pub fn open(path: Option<&Path>, rotation: Option<Rotation>, live: bool) -> Result<Self, Error> {
        let file = match path {
            Some(path) => open_file(path).map_err(|error| Error::file("--output-file", path, error))?,
            None => stdout().map_err(|e| Error::Usage(format!("stdout: {}", os_message(&e))))?,
        };
        let size = rotation.map_or(Ok(0), |_| prepare_for_rotation(&file));
        let size = size.map_err(|e| Error::file("--output-max-size", path.unwrap_or(Path::new("")), e))?;
        Ok(Self {
            chunk: chunk_of(&file),
            file,
            path: path.map(Path::to_owned),
            on_path: path.is_some(),
            live,
            pending: Vec::new(),
            written: 0,
            ends: Vec::new(),
            dropped: 0,
            dropped_so_far: 0,
            closed: false,
            failed: false,
            rotation,
            size,
            stuck: false,
            trouble: None,
            reported: None,
        })
    }

    /// The reader is gone, or nothing can be written any more: the run must end.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a record could not be written to its target.
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether there is a file that SIGHUP can open again.
    pub const fn can_reopen(&self) -> bool {
        self.path.is_some()
    }

    /// Whether there is room for a record. If not, the record is counted as dropped.
    pub fn accepts(&mut self) -> bool {
        let room = !self.closed && self.pending.len() - self.written < BACKLOG;
        if !room && !self.closed {
            self.dropped += 1;
            self.dropped_so_far += 1;
        }
        room
    }

    /// Records dropped since the last call. 0 while there is no room for the `loss` record about them.
    pub fn take_dropped(&mut self) -> u64 {
        if self.pending.len() - self.written < BACKLOG / 2 { std::mem::take(&mut self.dropped) } else { 0 }
    }

    pub const fn dropped_so_far(&self) -> u64 {
        self.dropped_so_far
    }

    /// Columns of the target, if it is a terminal.
    pub fn columns(&self) -> Option<usize> {
        columns(&self.file)
    }

    /// The target's name in metrics.
    pub const fn name(&self) -> &'static str {
        if self.path.is_some() { "output_file" } else { "stdout" }
    }

    /// Why records wait for the file, or go to stdout instead, if they do.
    pub const fn trouble(&self) -> Option<&String> {
        self.trouble.as_ref()
    }

    /// Takes one record, its newline included.
    pub fn put(&mut self, record: &[u8]) {
        self.pending.extend_from_slice(record);
        self.ends.push(self.pending.len());
        if !self.live && self.pending.len() > 1 << 16 {
            self.flush();
        }
    }

    /// Writes everything; in a live run, only what can be written without blocking.
    pub fn flush(&mut self) {
        while self.written < self.pending.len() && !self.closed && !self.stuck {
            if self.live && !ready(self.file.as_fd(), PollTimeout::ZERO) {
                break;
            }
            self.write_some();
        }
        let is_over = self.written == self.pending.len() && (self.on_path || self.path.is_none());
        if is_over && self.trouble.take().is_some() {
            tracing::info!("the output file can be written again");
        }
        self.compact();
    }

    /// Called once a second: retries a failed write, and notices a reader that is gone.
    pub fn check_reader(&mut self) {
        self.stuck = false;
        self.flush();
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, PollTimeout::ZERO);
        let gone = fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLERR));
        if polled.is_ok() && gone {
            self.fail(&io::Error::from_raw_os_error(libc::EPIPE));
        }
    }

    /// Ends the output. Waits up to [`PATIENCE`] for a slow reader.
    pub fn finish(&mut self) {
        self.stuck = false;
        self.flush();
        self.hand_over();
        let end = Instant::now() + PATIENCE;
        while self.written < self.pending.len() && !self.closed && !self.stuck {
            let patience = end.saturating_duration_since(Instant::now());
            if !ready(self.file.as_fd(), PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO)) {
                break;
            }
            self.write_some();
        }
        let left = self.unwritten() as u64 + self.dropped;
        if left > 0 && !self.closed {
            self.failed = true;
            let why = self.trouble.as_deref().unwrap_or("the output's reader does not read");
            error::report(&format!("{why}: {} not written", were(left, "record")));
        }
    }

    /// Opens `--output-file` again; keeps the open file if that fails.
    pub fn reopen(&mut self) {
        let Some(path) = self.path.clone() else { return };
        self.flush();
        match self.open_again(&path) {
            Ok(()) => {
                self.on_path = true;
                self.failed = false;
                self.stuck = false;
            }
            Err(error) => {
                let error = Error::file("--output-file", path, error);
                if self.on_path && self.file.metadata().is_ok_and(|open| open.nlink() == 0) {
                    error::report(&format!("{error}; the open file was deleted: the records go to stdout"));
                    self.trouble = Some(error.to_string());
                    self.switch_to_stdout();
                } else {
                    error::report(&format!("{error}; the records go to the same target as before"));
                }
            }
        }
    }

    fn open_again(&mut self, path: &Path) -> io::Result<()> {
        let file = open_file(path)?;
        self.size = if self.rotation.is_some() { prepare_for_rotation(&file)? } else { 0 };
        // A slow stdout may have taken a part of a record: another file gets the whole one.
        if !is_same(&file, &self.file) {
            self.rewind();
        }
        self.chunk = chunk_of(&file);
        self.file = file;
        Ok(())
    }

    fn write_some(&mut self) {
        if let Some(rotation) = self.rotation.filter(|r| self.is_full(*r))
            && let Err(error) = self.rotate(rotation)
        {
            self.fail(&error);
            return;
        }
        let end = self.pending.len().min(self.written.saturating_add(self.chunk));
        let end = self.rotation.map_or(end, |rotation| end.min(self.fitting(rotation)));
        if stderr::is_drawn() && self.file.is_terminal() {
            stderr::erase();
        }
        match self.file.write(&self.pending[self.written..end]) {
            Ok(0) => self.fail(&io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                self.written += n;
                self.size += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let patience = if self.live { PollTimeout::from(1_u8) } else { PollTimeout::NONE };
                ready(self.file.as_fd(), patience);
            }
            Err(e) => self.fail(&e),
        }
    }

    /// Records that are not completely written.
    fn unwritten(&self) -> usize {
        self.ends.len() - self.whole()
    }

    fn compact(&mut self) {
        if self.written == self.pending.len() {
            if self.pending.capacity() > KEPT {
                (self.pending, self.ends) = (Vec::new(), Vec::new());
            }
            self.pending.clear();
            self.ends.clear();
            self.written = 0;
        } else if self.written > 1 << 20 {
            let (whole, start) = (self.whole(), self.end_of_whole());
            self.pending.drain(..start);
            self.ends.drain(..whole);
            self.ends.iter_mut().for_each(|end| *end -= start);
            self.written -= start;
        }
    }
}

fn is_same(a: &File, b: &File) -> bool {
    let identity = |it: &File| it.metadata().map(|it| (it.dev(), it.ino())).ok();
    identity(a).is_some() && identity(a) == identity(b)
}

#[cfg(test)]
mod tests;
