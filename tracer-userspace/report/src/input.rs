//! Reads the files as a stream of lines of bounded length, so memory does not grow with a file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::container_log::Unwrap;
use super::faults::{Faults, Problem};
use super::line;
use tracer_model::lines::Lines;
use tracer_output::gzip::{self, Unpacked};
use tracer_terminal::error::{Error, os_message};

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
    pub(super) source: Box<dyn Read>,
    /// Time of the first record.
    pub(super) begins: Option<i64>,
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
        return Ok(Input::new("stdin".into(), Box::new(io::stdin())));
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

/// Time of the first record. The position in the file does not change.
fn begin(file: &File) -> Option<i64> {
    use std::os::unix::fs::FileExt as _;
    let mut head = vec![0; 1 << 16];
    let read = file.read_at(&mut head, 0).ok()?;
    head.truncate(read);
    let mut unpacked = gzip::unpack(io::Cursor::new(head)).ok()?.source.take(1 << 16);
    let mut head = Vec::new();
    // The end of a compressed head is missing.
    let _ = unpacked.read_to_end(&mut head);
    let end = head.iter().rposition(|&byte| byte == b'\n')?;
    let mut unwrap = Unwrap::default();
    let mut lines = head[..end].split(|&byte| byte == b'\n');
    lines.find_map(|line| unwrap.take(line).and_then(|record| line::time_of(&record)))
}

impl Input {
    pub(super) fn new(name: String, source: Box<dyn Read>) -> Self {
        Self { name, size: None, inode: None, source, begins: None }
    }

    /// Gives `take` the number and the bytes of each line, without what a container runtime or kubectl wrote around it, and
    /// reports the lines that it refuses. Gives whether the file was read to its end.
    pub(super) fn each_line(
        self,
        faults: &mut Faults,
        take: impl FnMut(usize, &[u8]) -> Result<(), Problem>,
    ) -> Result<bool, Error> {
        faults.begin(&self.name);
        let name = self.name.clone();
        match self.unpacked() {
            Ok(input) => input.each_unpacked_line(faults, take),
            Err(error) => {
                faults.fault(format!("{name}:1: {}: skipped", os_message(&error)));
                faults.end();
                Ok(false)
            }
        }
    }

    /// Without its compression. The size of a compressed file does not count.
    fn unpacked(self) -> io::Result<Self> {
        let Unpacked { source, was_gzip } = gzip::unpack(self.source)?;
        Ok(Self { source, size: self.size.filter(|_| !was_gzip), ..self })
    }

    fn each_unpacked_line(
        mut self,
        faults: &mut Faults,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), Problem>,
    ) -> Result<bool, Error> {
        let (mut lines, mut chunk) = (Lines::new(LINE_MAX), vec![0; CHUNK]);
        let (mut number, mut read) = (0, 0);
        let mut unwrap = Unwrap::default();
        let mut take = |number, line: &[u8]| unwrap.take(line).map_or(Ok(()), |line| take(number, &line));
        let mut ended = loop {
            let bytes = match self.source.read(&mut chunk) {
                Ok(length) => &chunk[..length],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    number += 1;
                    break Err(Problem::File(os_message(&error)));
                }
            };
            read += bytes.len() as u64;
            let taken = lines.feed(bytes, |line| {
                number += 1;
                let taken = match line {
                    None => Err(Problem::Line("a line of more than 1 MiB".into())),
                    Some(line) if line.trim_ascii().is_empty() => Ok(()),
                    Some(line) => take(number, line),
                };
                taken.or_else(|problem| faults.skip(number, problem))
            });
            if bytes.is_empty() || taken.is_err() {
                break taken;
            }
        };
        let mut is_torn = false;
        if let (Ok(()), Some(torn)) = (&ended, lines.end()) {
            number += 1;
            ended = take(number, torn).or_else(|problem| match problem {
                Problem::Line(_) | Problem::Note(_) => {
                    is_torn = true;
                    Ok(())
                }
                problem => Err(problem),
            });
        }
        if ended.is_ok() && (is_torn || unwrap.is_open()) {
            faults.note(number, "the last line is not whole");
        }
        let size = self.size.unwrap_or(0);
        let is_whole = ended.is_ok() && read >= size;
        match ended {
            Err(Problem::Command(error)) => return Err(error),
            Err(Problem::Line(problem) | Problem::Note(problem) | Problem::File(problem)) => {
                let skipped = if number > 1 { "the rest of the file is skipped" } else { "skipped" };
                faults.fault(format!("{}:{number}: {problem}: {skipped}", self.name));
            }
            Ok(()) if !is_whole => {
                faults.fault(format!("{}: it became shorter while it was read: {read} of {size} bytes", self.name))
            }
            Ok(()) => {}
        }
        faults.end();
        Ok(is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_is_read_once() {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(open("report FILE", &["-".into(), "-".into()]).err().map(|error| error.to_string()))
        });
        let reported = receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it waits for itself");
        assert_eq!(reported.as_deref(), Some("report FILE stdin: the same file twice"));
    }
}
