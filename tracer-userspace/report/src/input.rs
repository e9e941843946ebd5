//! Reads the files as a stream of lines of bounded length, so memory does not grow with a file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::line;
use tracer_terminal::error::Error;

/// The longest line that is read: a verdict with all its evidence has a few KiB.
const LINE_MAX: usize = 1 << 20;
/// Bytes that are read at once.
const CHUNK: usize = 1 << 18;

pub(super) struct Input {
    /// The name, as the user typed it.
    pub(super) name: String,
    /// The size when it was opened; absent for a pipe.
    pub(super) size: Option<u64>,
    /// Device and inode; absent for stdin.
    pub(super) inode: Option<(u64, u64)>,
    source: Box<dyn Read>,
    /// Time of the first record.
    begins: Option<i64>,
}

/// Opens all files before it reads one, so a file that is removed later is still read. Messages call them `what`. They are
/// sorted by time, because a shell lists rotated files with the newest first.
pub(super) fn open(what: &'static str, paths: &[PathBuf]) -> Result<Vec<Input>, Error> {
    let mut inputs = paths.iter().map(|path| open_one(what, path)).collect::<Result<Vec<_>, _>>()?;
    for (i, input) in inputs.iter().enumerate() {
        if inputs[..i].iter().any(|other| other.inode == input.inode) {
            return Err(Error::Usage(format!("{what} {}: the same file twice", input.name)));
        }
    }
    inputs.sort_by_key(|input| input.begins);
    Ok(inputs)
}

fn open_one(what: &'static str, path: &Path) -> Result<Input, Error> {
    if path == Path::new("-") {
        // stdin is not locked: a second `-` would wait for the lock of the first one forever, and not be reported.
        let source = Box::new(io::stdin());
        return Ok(Input { name: "stdin".into(), size: None, inode: None, source, begins: None });
    }
    let failed = |error| Error::file(what, path, error);
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.is_dir() {
        return Err(failed(io::Error::from_raw_os_error(libc::EISDIR)));
    }
    let regular = meta.is_file();
    Ok(Input {
        name: path.display().to_string(),
        size: regular.then_some(meta.len()),
        inode: Some((meta.dev(), meta.ino())),
        begins: if regular { begin(&file) } else { None },
        source: Box::new(file),
    })
}

/// Time of the first line. The position in the file does not change.
fn begin(file: &File) -> Option<i64> {
    use std::os::unix::fs::FileExt as _;
    let mut head = vec![0; 1 << 16];
    let read = file.read_at(&mut head, 0).ok()?;
    let end = head[..read].iter().position(|&byte| byte == b'\n')?;
    line::time_of(&head[..end])
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Line,
    /// The last line, without a newline.
    Torn,
    /// A line that is too long and was skipped.
    TooLong,
    End,
}

pub(super) struct Lines<R> {
    input: R,
    /// The line that was read last, without its newline.
    pub(super) bytes: Vec<u8>,
    /// Its number, from 1.
    pub(super) number: usize,
    pub(super) read: u64,
}

impl Input {
    /// The lines of the file. `watch` wraps the reader, to show the progress.
    pub(super) fn lines(self, watch: impl FnOnce(Box<dyn Read>) -> Box<dyn Read>) -> Lines<BufReader<Box<dyn Read>>> {
        Lines::new(BufReader::with_capacity(CHUNK, watch(self.source)))
    }
}

impl<R: BufRead> Lines<R> {
    pub(super) const fn new(input: R) -> Self {
        Self { input, bytes: Vec::new(), number: 0, read: 0 }
    }

    /// Reads the next line into `bytes`.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        self.bytes.clear();
        self.number += 1;
        let mut too_long = false;
        loop {
            let chunk = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                chunk => chunk?,
            };
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let taken = end.unwrap_or(chunk.len());
            too_long |= self.bytes.len() + taken > LINE_MAX;
            if !too_long {
                self.bytes.extend_from_slice(&chunk[..taken]);
            }
            let (over, used) = (chunk.is_empty(), taken + usize::from(end.is_some()));
            self.input.consume(used);
            self.read += used as u64;
            if over || end.is_some() {
                return Ok(self.ended(over, too_long));
            }
        }
    }

    fn ended(&self, over: bool, too_long: bool) -> Next {
        match (too_long, over, self.bytes.is_empty()) {
            (true, ..) => Next::TooLong,
            (false, false, _) => Next::Line,
            (false, true, false) => Next::Torn,
            (false, true, true) => Next::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_by_one() {
        let mut lines = Lines::new(BufReader::with_capacity(3, &b"one\n\nthree"[..]));
        let mut lines_read = Vec::new();
        while lines.next().unwrap() != Next::End {
            lines_read.push((lines.number, String::from_utf8(lines.bytes.clone()).unwrap()));
        }
        assert_eq!(lines_read, [(1, "one".into()), (2, String::new()), (3, "three".into())]);
        assert_eq!(lines.read, 10);
    }

    #[test]
    fn stdin_is_read_once() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(open("report FILE", &["-".into(), "-".into()]).err().map(|error| error.to_string()))
        });
        let reported = receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it waits for itself");
        assert_eq!(reported.as_deref(), Some("report FILE stdin: the same file twice"));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_not_kept_in_memory() {
        let input = io::repeat(b'x').take(3 << 20).chain(&b"\nnext\n"[..]);
        let mut lines = Lines::new(BufReader::new(input));
        assert_eq!(lines.next().unwrap(), Next::TooLong);
        assert!(lines.bytes.capacity() <= 2 * LINE_MAX);
        assert_eq!((lines.next().unwrap(), lines.bytes.as_slice()), (Next::Line, &b"next"[..]));
        assert_eq!(lines.next().unwrap(), Next::End);
    }
}
