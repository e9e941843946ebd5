//! Lines on stderr. In a live run a thread of its own writes them: a reader that stops reading must not stop the pipeline.
//!
//! Lines wait in a bounded queue. A line that finds no room, or that cannot be written, is counted. The count is reported
//! once stderr takes lines again. `poll(2)` before a write would not be enough: a regular file is always called writable,
//! even if its disk hangs. And several threads write: another one may fill a pipe after the call.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{panic, thread};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes that may wait for a slow reader.
const BACKLOG: usize = 1 << 18;
/// How long the end of the process waits for a slow reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// Goes to the first column of a terminal and clears the line.
pub(crate) const ERASE: &str = "\r\u{1b}[K";

/// Whether the status line is on the terminal now. It is one value for the process, because the process has one stderr.
static DRAWN: AtomicBool = AtomicBool::new(false);
/// The lines of a live run.
static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// From now on, a write to stderr does not block its thread. If no thread can be started, nothing changes.
pub fn start() {
    let Ok(out) = io::stderr().as_fd().try_clone_to_owned() else { return };
    let queue = Arc::new(Queue::default());
    if QUEUE.get().is_some() || queue.write_to(File::from(out)).is_err() || QUEUE.set(queue).is_err() {
        return;
    }
    // Rust's own hook waits for the reader: the thread would neither end nor be missed.
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let mut text = format!("\nthread '{}' {panic}\n", thread.name().unwrap_or("<unnamed>"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text.push_str(&backtrace.to_string());
        }
        write(text.as_bytes());
        finish();
    }));
}

/// Waits a short time for the lines that are not written yet. Call this at the end of the process.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.finish(PATIENCE);
    }
}

/// Writes a whole line, after the status line is erased. A closed stderr is no error.
pub(crate) fn write(line: &[u8]) {
    if let Some(queue) = QUEUE.get() {
        queue.put(line);
    } else {
        erase();
        let _ = io::stderr().write_all(line);
    }
}

/// Writes each buffer as a whole line.
#[derive(Debug)]
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Draws the status line, at the place of the one before.
pub(crate) fn draw(text: &str) {
    DRAWN.store(true, Ordering::Relaxed);
    let _ = io::stderr().write_all(format!("{ERASE}{text}").as_bytes());
}

/// Whether the status line can be drawn: no line waits, and the write would not block. It blocks after Ctrl-S.
pub(crate) fn is_free() -> bool {
    QUEUE.get().is_none_or(|queue| queue.lock().is_idle()) && is_writable(&io::stderr())
}

pub fn is_drawn() -> bool {
    DRAWN.load(Ordering::Relaxed)
}

/// Erases the status line if it is on the terminal. Call this before anything is written to the terminal.
pub fn erase() {
    if DRAWN.swap(false, Ordering::Relaxed) && is_writable(&io::stderr()) {
        let _ = io::stderr().write_all(ERASE.as_bytes());
    }
}

fn is_writable(out: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(out.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
}

/// Lines between the threads of a run and the one that writes them.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// Bytes in `waiting`.
    bytes: usize,
    /// A line is being written.
    writing: bool,
    /// Lines that were not written, and not reported yet.
    lost: u64,
    /// The last write failed: only the next line shows whether stderr can be written again.
    failing: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.writing && (self.lost == 0 || self.failing)
    }

    /// The next line and how many lines are lost with it.
    fn next(&mut self) -> Option<(Vec<u8>, u64)> {
        if let Some(line) = self.waiting.pop_front() {
            self.bytes -= line.len();
            return Some((line, 1));
        }
        let lost = if self.failing { 0 } else { std::mem::take(&mut self.lost) };
        let text = || format!("tracer: warning: stderr was blocked or full: lines that were not written: {lost}\n");
        (lost > 0).then(|| (text().into_bytes(), lost))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.bytes + line.len() > BACKLOG {
            state.lost += 1;
        } else {
            state.bytes += line.len();
            state.waiting.push_back(line.to_vec());
            self.changed.notify_all();
        }
    }

    /// Starts the thread that writes the lines.
    fn write_to(self: &Arc<Self>, mut out: impl Write + Send + 'static) -> io::Result<()> {
        let queue = self.clone();
        let write = move || {
            loop {
                let (line, count) = queue.take();
                erase();
                let failing = out.write_all(&line).is_err();
                let mut state = queue.lock();
                state.lost += if failing { count } else { 0 };
                (state.writing, state.failing) = (false, failing);
                queue.changed.notify_all();
            }
        };
        thread::Builder::new().name("stderr".to_owned()).spawn(write).map(drop)
    }

    /// Waits for a line.
    fn take(&self) -> (Vec<u8>, u64) {
        let mut state = self.lock();
        loop {
            if let Some(next) = state.next() {
                state.writing = true;
                return next;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, patience: Duration) {
        let _ = self.changed.wait_timeout_while(self.lock(), patience, |state| !state.is_idle());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, PipeWriter};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    fn queue(out: impl Write + Send + 'static) -> Arc<Queue> {
        let queue = Arc::new(Queue::default());
        queue.write_to(out).expect("a thread");
        queue
    }

    fn fill(pipe: &PipeWriter) {
        let mut pipe = pipe.try_clone().expect("a pipe");
        while is_writable(&pipe) {
            pipe.write_all(&[b'\n'; 4096]).expect("room");
        }
    }

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_learns_what_it_missed() {
        const LINES: usize = 10_000;
        let (reader, pipe) = io::pipe().expect("a pipe");
        fill(&pipe);
        let queue = queue(pipe);
        let line = [b'x'; 99].into_iter().chain([b'\n']).collect::<Vec<_>>();
        // A write that blocks would never return: nobody reads yet.
        (0..LINES).for_each(|_| queue.put(&line));
        queue.finish(Duration::from_millis(1));
        assert!(queue.lock().bytes <= BACKLOG && !queue.lock().is_idle());
        let lines = BufReader::new(reader).lines().map(|line| line.expect("text")).filter(|line| !line.is_empty());
        let mut written = 0;
        let report = lines.inspect(|_| written += 1).find(|line| !line.starts_with('x')).expect("a report");
        let lost = LINES + 1 - written;
        assert_eq!(report, format!("tracer: warning: stderr was blocked or full: lines that were not written: {lost}"));
        assert!(written > BACKLOG / line.len(), "{written}");
    }

    /// A full disk: each write gets the result that the test sends.
    struct Disk(Receiver<bool>, Sender<String>);

    impl Write for Disk {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if !self.0.recv().expect("the test sends it") {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            self.1.send(String::from_utf8(line.to_vec()).expect("text")).expect("the test reads it");
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_refused_is_counted_and_reported_after_the_next_line() {
        const LONG: Duration = Duration::from_secs(30);
        let ((results, disk), (lines, written)) = (channel(), channel());
        let queue = queue(Disk(disk, lines));
        for (line, result) in [("a", false), ("b", false), ("c", true)] {
            queue.put(line.as_bytes());
            results.send(result).expect("a thread");
        }
        assert_eq!(written.recv_timeout(LONG).as_deref(), Ok("c"));
        // The disk is full again: the report fails, and is retried with the next line.
        [false, true, true].into_iter().for_each(|result| results.send(result).expect("a thread"));
        queue.finish(LONG);
        queue.put(b"d");
        assert_eq!(written.recv_timeout(LONG).as_deref(), Ok("d"));
        let report = "tracer: warning: stderr was blocked or full: lines that were not written: 2\n";
        assert_eq!(written.recv_timeout(LONG).as_deref(), Ok(report));
        queue.finish(LONG);
        assert!(queue.lock().is_idle());
    }
}
