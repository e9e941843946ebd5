//! Where the bytes go: stdout or `--output-file`.
//!
//! A reader that stops reading must not stop the tracer, so a live run never blocks here: what
//! cannot be written waits in a bounded buffer, and beyond its bound records are counted as lost.
//! A file that cannot be written any more (a full disk) hands over to stdout, so that no record
//! that was decided is lost; the run then ends with exit code 2. A file that the tracer rotates itself
//! is waited for instead: what does not fit into the buffer meanwhile is counted as lost.
#![expect(clippy::disallowed_methods, reason = "outside the core: how long a reader is waited for")]

mod rotate;

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use self::rotate::Rotation;
use crate::error::{self, Error, os_message};

/// Bytes that may wait for a slow reader.
const BACKLOG: usize = 8 << 20;
/// Bytes of the buffer that are kept once it is empty.
const KEPT: usize = 1 << 20;
/// A write of at most this size does not block a pipe that `poll` calls writable (PIPE_BUF).
const PIPE_CHUNK: usize = 4096;
/// How often it is said that a file cannot be written, if it works in between.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// How long the end of a live run waits for a slow reader.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where the bytes go.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// `--output-file`; `None`: stdout was asked for.
    path: Option<PathBuf>,
    /// Bytes still go to `path`.
    on_path: bool,
    /// Never block.
    live: bool,
    chunk: usize,
    pending: Vec<u8>,
    /// How much of `pending` is written.
    written: usize,
    /// Ends of the records in `pending`.
    ends: Vec<usize>,
    dropped: u64,
    /// The same since the start.
    dropped_so_far: u64,
    closed: bool,
    failed: bool,
    rotation: Option<Rotation>,
    /// Bytes in the file, where it is rotated.
    size: u64,
    /// No more tries until the next second.
    stuck: bool,
    /// Why records wait, since the last failure.
    trouble: Option<String>,
    said: Option<Instant>,
}

impl Output {
    /// Opens it. `live`: never block.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or stdout cannot be duplicated, or what cannot be rotated is to be.
    pub fn open(path: Option<&Path>, rotation: Option<Rotation>, live: bool) -> Result<Self, Error> {
        let file = match path {
            Some(path) => open_file(path).map_err(|error| Error::file("--output-file", path, error))?,
            None => stdout().map_err(|e| Error::file("stdout", "", e))?,
        };
        let size = match rotation {
            Some(_) => own(&file).map_err(|e| Error::file("--output-max-size", path.unwrap_or(Path::new("")), e))?,
            None => 0,
        };
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
            said: None,
        })
    }

    /// The reader has gone, or nothing can be written any more: time to end.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Something could not be written where it was meant to go.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failed
    }

    /// SIGHUP has a meaning: there is a file to open anew.
    #[must_use]
    pub const fn can_reopen(&self) -> bool {
        self.path.is_some()
    }

    /// Whether a record would be taken; if not, it is counted as dropped.
    pub fn accepts(&mut self) -> bool {
        let room = !self.closed && self.pending.len() - self.written < BACKLOG;
        if !room && !self.closed {
            self.dropped += 1;
            self.dropped_so_far += 1;
        }
        room
    }

    /// Records dropped since the last call, once there is room to say so.
    pub fn take_dropped(&mut self) -> u64 {
        if self.pending.len() - self.written < BACKLOG / 2 { std::mem::take(&mut self.dropped) } else { 0 }
    }

    /// Records dropped since the start.
    #[must_use]
    pub const fn dropped_so_far(&self) -> u64 {
        self.dropped_so_far
    }

    /// Its name in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        if self.path.is_some() { "output_file" } else { "stdout" }
    }

    /// Why records wait for the file, if they do.
    #[must_use]
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

    /// Writes what can be written (live), or everything.
    pub fn flush(&mut self) {
        while self.written < self.pending.len() && !self.closed && !self.stuck {
            if self.live && !ready(self.file.as_fd(), PollTimeout::ZERO) {
                break;
            }
            self.write_some();
        }
        if self.written == self.pending.len() && self.trouble.take().is_some() {
            tracing::info!("the output file is written again");
        }
        self.compact();
    }

    /// Once a second: tries again what could not be written, and notices a reader that has gone.
    pub fn check_reader(&mut self) {
        self.stuck = false;
        self.flush();
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, PollTimeout::ZERO);
        let gone = fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLERR));
        if polled.is_ok() && gone {
            self.closed = true;
        }
    }

    /// The end: waits a little for a slow reader.
    pub fn finish(&mut self) {
        self.stuck = false;
        self.flush();
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
            error::report(&format!("{why}: {left} records were not written"));
        }
    }

    /// Opens `--output-file` anew; keeps the old one if that fails.
    pub fn reopen(&mut self) {
        let Some(path) = self.path.clone() else { return };
        self.flush();
        match self.open_anew(&path) {
            Ok(()) => {
                self.on_path = true;
                self.failed = false;
                self.stuck = false;
            }
            Err(error) => {
                let error = Error::file("--output-file", path, error);
                error::report(&format!("{error}; the records go where they went"));
            }
        }
    }

    fn open_anew(&mut self, path: &Path) -> io::Result<()> {
        let file = open_file(path)?;
        self.size = if self.rotation.is_some() { own(&file)? } else { 0 };
        self.chunk = chunk_of(&file);
        self.file = file;
        Ok(())
    }

    /// One write.
    fn write_some(&mut self) {
        if let Some(rotation) = self.rotation.filter(|r| self.is_full(*r))
            && let Err(error) = self.rotate(rotation)
        {
            self.fail(&error);
            return;
        }
        let end = self.pending.len().min(self.written.saturating_add(self.chunk));
        let end = self.rotation.map_or(end, |rotation| end.min(self.fitting(rotation)));
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

    /// The next record begins here and does not fit into the file any more.
    fn is_full(&self, rotation: Rotation) -> bool {
        let next = self.whole();
        let begins = next.checked_sub(1).map_or(0, |last| self.ends[last]) == self.written;
        let fits = |end: usize| self.size + (end - self.written) as u64 <= rotation.max_bytes;
        self.on_path && begins && self.size > 0 && self.ends.get(next).is_some_and(|&end| !fits(end))
    }

    /// Where to stop writing: at the end of the last record that fits, at least of the one that is next.
    fn fitting(&self, rotation: Rotation) -> usize {
        if !self.on_path {
            return usize::MAX;
        }
        let room = usize::try_from(rotation.max_bytes.saturating_sub(self.size)).unwrap_or(usize::MAX);
        let fit = self.ends.partition_point(|&end| end <= self.written.saturating_add(room));
        let least = self.whole() + 1;
        self.ends.get(fit.max(least) - 1).copied().unwrap_or(usize::MAX)
    }

    fn rotate(&mut self, rotation: Rotation) -> io::Result<()> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let size = self.file.metadata()?.len();
        // Somebody has cut it meanwhile.
        if size < self.size {
            self.size = size;
            return Ok(());
        }
        let rotated = rotation.shift(&path, &self.file).and_then(|()| self.open_anew(&path));
        rotated.map_err(|e| io::Error::new(e.kind(), format!("it cannot be rotated: {}", os_message(&e))))
    }

    /// The target takes no more.
    fn fail(&mut self, error: &io::Error) {
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
        error::report(&format!("stdout: {}: {} records were not written", os_message(error), self.unwritten()));
    }

    /// Records wait until there is room again.
    fn wait(&mut self, error: &io::Error) {
        self.rewind();
        self.stuck = true;
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        let trouble = format!("--output-file {path}: {}", os_message(error));
        if self.trouble.is_none() && self.said.is_none_or(|said| said.elapsed() > SAY_AGAIN) {
            self.said = Some(Instant::now());
            let room = BACKLOG >> 20;
            error::report(&format!(
                "{trouble}: records wait ({room} MiB, more are dropped and counted) and are tried again each second; verdicts and metrics go on"
            ));
        }
        self.trouble = Some(trouble);
    }

    /// Back to the end of the last record that is whole in the file.
    fn rewind(&mut self) {
        let start = self.whole().checked_sub(1).map_or(0, |last| self.ends[last]);
        self.cut_torn(self.written - start);
        self.written = start;
    }

    /// Records of `pending` that are wholly written.
    fn whole(&self) -> usize {
        self.ends.partition_point(|&end| end <= self.written)
    }

    /// From the file to stdout, beginning with the first record that is not whole in the file.
    fn fall_back(&mut self, error: &io::Error) {
        self.rewind();
        self.failed = true;
        self.on_path = false;
        let path = self.path.as_deref().unwrap_or(Path::new("")).display();
        error::report(&format!(
            "--output-file {path}: {}: the records from here on go to stdout; make room, then SIGHUP opens the file anew",
            os_message(error)
        ));
        match stdout() {
            Ok(file) => {
                self.chunk = chunk_of(&file);
                self.file = file;
            }
            Err(_) => self.closed = true,
        }
    }

    /// Takes half a record off the file's end, if nobody has appended since.
    fn cut_torn(&mut self, torn: usize) {
        let (Ok(position), Ok(meta)) = (self.file.stream_position(), self.file.metadata()) else { return };
        if torn > 0 && meta.is_file() && position == meta.len() {
            let whole = position.saturating_sub(torn as u64);
            if self.file.set_len(whole).is_ok() {
                self.size = whole;
            }
        }
    }

    /// Records not (wholly) written.
    fn unwritten(&self) -> usize {
        self.ends.len() - self.whole()
    }

    /// Forgets what is written.
    fn compact(&mut self) {
        if self.written == self.pending.len() {
            if self.pending.capacity() > KEPT {
                (self.pending, self.ends) = (Vec::new(), Vec::new());
            }
            self.pending.clear();
            self.ends.clear();
            self.written = 0;
        } else if self.written > 1 << 20 {
            let whole = self.whole();
            let start = whole.checked_sub(1).map_or(0, |last| self.ends[last]);
            self.pending.drain(..start);
            self.ends.drain(..whole);
            self.ends.iter_mut().for_each(|end| *end -= start);
            self.written -= start;
        }
    }
}

/// Appends; made with mode 0600; not through a symbolic link (the tracer is root); never waits for a pipe's reader.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
}

/// A file that is rotated is a regular one, and its owner's alone; its size.
fn own(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file: it cannot be rotated"));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(meta.len())
}

/// stdout without Rust's buffer.
fn stdout() -> io::Result<File> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

/// How much to write at once: everything to a file, little to a pipe or terminal.
fn chunk_of(file: &File) -> usize {
    match file.metadata() {
        Ok(meta) if meta.is_file() => usize::MAX,
        Ok(meta) if meta.file_type().is_char_device() => PIPE_CHUNK / 4,
        _ => PIPE_CHUNK,
    }
}

/// Whether a write would go through (or fail) at once.
fn ready(fd: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    match poll(&mut fds, timeout) {
        Ok(n) => n > 0,
        Err(errno) => errno != nix::errno::Errno::EINTR,
    }
}

#[cfg(test)]
mod tests;
