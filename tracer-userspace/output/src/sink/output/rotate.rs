//! Rotation of `--output-file`: FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Output;
use tracer_terminal::error::os_message;

/// When a file is rotated, and how many old files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The largest size of the file, bytes. Only a single record that is longer may exceed it.
    pub max_bytes: u64,
    /// Old files: FILE.1 to FILE.N.
    pub max_files: u32,
}

impl Rotation {
    /// Makes room for a new FILE. A retry after a failure moves no file twice.
    pub(super) fn shift(self, path: &Path, open: &File) -> io::Result<()> {
        // Another process has rotated the file already.
        if !is_same_file(path, open)? {
            return Ok(());
        }
        let taken = (1..=self.max_files).take_while(|n| fs::symlink_metadata(numbered(path, *n)).is_ok()).count();
        let last = u32::try_from(taken).unwrap_or(u32::MAX).min(self.max_files.saturating_sub(1));
        for n in (1..=last).rev() {
            fs::rename(numbered(path, n), numbered(path, n + 1))?;
        }
        fs::rename(path, numbered(path, 1))
    }
}

impl Output {
    /// Whether the next byte starts a record that does not fit into the file.
    pub(super) fn is_full(&self, rotation: Rotation) -> bool {
        let begins = self.end_of_whole() == self.written;
        let fits = |end: usize| self.size + (end - self.written) as u64 <= rotation.max_bytes;
        self.on_path && begins && self.size > 0 && self.ends.get(self.whole()).is_some_and(|&end| !fits(end))
    }

    /// Where to stop writing: at the end of the last record that fits, but not before the end of the next record.
    pub(super) fn fitting(&self, rotation: Rotation) -> usize {
        if !self.on_path {
            return usize::MAX;
        }
        let room = usize::try_from(rotation.max_bytes.saturating_sub(self.size)).unwrap_or(usize::MAX);
        let fit = self.ends.partition_point(|&end| end <= self.written.saturating_add(room));
        let least = self.whole() + 1;
        self.ends.get(fit.max(least) - 1).copied().unwrap_or(usize::MAX)
    }

    pub(super) fn rotate(&mut self, rotation: Rotation) -> io::Result<()> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let size = self.file.metadata()?.len();
        // Another process has truncated the file.
        if size < self.size {
            self.size = size;
            return Ok(());
        }
        let rotated = rotation.shift(&path, &self.file).and_then(|()| self.open_again(&path));
        rotated.map_err(|e| io::Error::new(e.kind(), format!("it cannot be rotated: {}", os_message(&e))))
    }
}

fn is_same_file(path: &Path, open: &File) -> io::Result<bool> {
    let open = open.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// FILE.N
pub(super) fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}
