//! A plain file as the kubelet's log: reads complete lines as it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::SystemTime;

use super::LogReader;
use crate::sent::Closed;
use tracer_model::lines::Lines;

/// A longer line is skipped: no line that tracer understands is that long.
pub(super) const MAX_LINE: usize = 64 << 10;
const CHUNK: usize = 16 << 10;
/// How many bytes are read before the follower checks for a closed receiver: a file can claim any size. No kubelet
/// writes as much in a second.
const MAX_READ: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct TextFile {
    file: File,
    at: u64,
    lines: Lines,
}

impl TextFile {
    /// Reads from the end; from the beginning if the file was created after `since`.
    pub(super) fn new(mut file: File, since: SystemTime) -> io::Result<Self> {
        let is_new = file.metadata()?.created().is_ok_and(|created| created >= since);
        let at = file.seek(if is_new { SeekFrom::Start(0) } else { SeekFrom::End(0) })?;
        Ok(Self { file, at, lines: Lines::new(MAX_LINE) })
    }
}

impl LogReader for TextFile {
    fn at(&self) -> u64 {
        self.at
    }

    fn resume(&mut self, at: u64) {
        self.at = self.file.seek(SeekFrom::Start(at)).unwrap_or(self.at);
    }

    /// Reads the new bytes, up to [`MAX_READ`]. A file that shrank is read from its beginning.
    fn read(&mut self, take: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
        if self.file.metadata()?.len() < self.at {
            self.at = self.file.seek(SeekFrom::Start(0))?;
            self.lines = Lines::new(MAX_LINE);
        }
        let mut chunk = vec![0; CHUNK];
        let until = self.at.saturating_add(MAX_READ);
        while self.at < until {
            let count = self.file.read(&mut chunk)?;
            if count == 0 {
                return Ok(());
            }
            self.at += count as u64;
            let taken = self.lines.feed(&chunk[..count], |line| {
                let is_open = line.is_none_or(|line| take(String::from_utf8_lossy(line).trim_end()));
                is_open.then_some(()).ok_or(Closed)
            });
            if taken.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn a_file_of_any_size_is_read_in_parts() {
        let scratch = Scratch::new();
        let file = File::options().read(true).write(true).create_new(true).open(scratch.path("log")).expect("file");
        file.set_len(4 * MAX_READ).expect("nothing but a hole");
        let mut text = TextFile::new(file, SystemTime::UNIX_EPOCH).expect("readable");
        text.resume(0);
        let mut reads = (1..=5).map(|_| text.read(&mut |_| true).map(|()| text.at()).expect("readable"));
        assert_eq!([(); 5].map(|()| reads.next().expect("five")), [1, 2, 3, 4, 4].map(|part| part * MAX_READ));
    }
}
