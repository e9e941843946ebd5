//! The systemd journal as the kubelet's log. tracer reads its files without libsystemd and so stays one static binary.
//!
//! journald maps its files into memory. After a write it truncates the file to its current size, which wakes inotify.
//! tracer reads the files and never maps them: when a mapped file is shortened, access to it kills the process.

mod ahead;
mod entry;
mod file;
pub(super) mod fuzzing;
mod packed;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use self::ahead::Ahead;
use self::entry::{JournalEntry, OtherFields};
use self::file::{Fault, Header, Object, ReadAt};
use super::LogReader;

/// Where journald keeps its files: on disk, or until the next boot.
const PLACES: &[&str] = &["var/log/journal", "run/log/journal"];
/// The file that journald writes to.
const CURRENT: &str = "system.journal";
/// How many directories of machine ids are read: images of nodes contain the id of the node they were made on.
const MAX_MACHINES: usize = 64;

/// The journal's current file below this root directory: the one with the last write.
pub(super) fn below(root: &Path) -> Option<PathBuf> {
    newest(PLACES.iter().filter_map(|place| within(&root.join(place))))
}

/// The current file in a directory of journals, or in one of its machines' directories.
pub fn within(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let machines = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_machine_id));
    let directories = machines.take(MAX_MACHINES).map(|entry| entry.path());
    newest(directories.chain([directory.to_owned()]).map(|it| it.join(CURRENT)))
}

/// Whether it is a machine id. The directory of a journal namespace has a dot and a name after the id.
fn is_machine_id(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|it| it.is_ascii_hexdigit())
}

fn newest(files: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let written = |path: &PathBuf| std::fs::metadata(path).and_then(|it| it.modified()).ok();
    files.filter_map(|path| Some((written(&path)?, path))).max().map(|(_, path)| path)
}

/// Reads one file of the journal as it grows.
#[derive(Debug)]
pub(super) struct Journal<F = File> {
    file: Ahead<F>,
    other_fields: OtherFields,
    /// Names of the processes that write the lines.
    names: Vec<String>,
    /// The offset of the next object.
    at: u64,
    /// Whether warnings were already logged: about damage, and about messages that cannot be unpacked.
    warned: (bool, bool),
}

impl<F: ReadAt> Journal<F> {
    /// Reads from the end; from the beginning if the first entry is newer than `since`.
    pub(super) fn new(file: F, names: Vec<String>, since: SystemTime) -> io::Result<Self> {
        let header = Header::read(&file).map_err(as_io)?;
        let since = since.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_micros());
        let is_new = header.tail == 0 || header.first_realtime == 0 || u128::from(header.first_realtime) >= since;
        let at = if is_new { header.size } else { behind(&file, &header) };
        Ok(Self { file: Ahead::new(file), other_fields: OtherFields::default(), names, at, warned: (false, false) })
    }

    /// The entry of the next object; `None` if it is still being written.
    fn next(&mut self, header: &Header) -> Result<Option<JournalEntry>, Fault> {
        let object = Object::read(&self.file, self.at)?;
        let items = if object.is_entry() { object.items(&self.file, header)? } else { Vec::new() };
        if self.at == header.tail && is_partial(&items) {
            return Ok(None);
        }
        self.at = object.end();
        let (file, names) = (self.file.direct(), &self.names);
        match entry::read(file, header, &items, names, &mut self.other_fields) {
            Err(fault @ Fault::Broken(_)) => {
                self.is_damaged(&fault);
                Ok(Some(JournalEntry::OtherFields))
            }
            read => read.map(Some),
        }
    }

    fn is_damaged(&mut self, fault: &Fault) {
        if !std::mem::replace(&mut self.warned.0, true) {
            tracing::warn!("a part of the journal is skipped: {fault}; lines of the kubelet may be missing");
        }
    }

    fn cannot_unpack(&mut self) {
        if !std::mem::replace(&mut self.warned.1, true) {
            tracing::warn!(
                "a line of the kubelet in the journal cannot be unpacked (XZ, or over 64 KiB); it is skipped"
            );
        }
    }
}

impl<F: ReadAt + Debug> LogReader for Journal<F> {
    fn at(&self) -> u64 {
        self.at
    }

    fn resume(&mut self, at: u64) {
        self.at = at;
    }

    fn read(&mut self, take: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
        self.file.forget();
        let header = Header::read(self.file.direct()).map_err(as_io)?;
        while header.tail != 0 && self.at <= header.tail {
            match self.next(&header) {
                Ok(Some(JournalEntry::Line(line))) if !take(&line) => return Ok(()),
                Ok(Some(JournalEntry::Unreadable)) => self.cannot_unpack(),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(Fault::Io(error)) => return Err(error),
                // The last object may not be complete yet.
                Err(_) if self.at == header.tail => return Ok(()),
                Err(fault) => {
                    self.is_damaged(&fault);
                    Object::read(self.file.direct(), header.tail).map_err(as_io)?;
                    self.at = header.tail;
                }
            }
        }
        Ok(())
    }
}

/// Whether the entry is incomplete: journald first allocates zeroes for an entry, then writes the entry's items there.
fn is_partial(items: &[u64]) -> bool {
    items.contains(&0)
}

/// The offset of the first object that is incomplete or not yet written.
fn behind(file: &impl ReadAt, header: &Header) -> u64 {
    let end = |last: Object| {
        let partial = last.is_entry() && is_partial(&last.items(file, header)?);
        Ok::<u64, Fault>(if partial { header.tail } else { last.end() })
    };
    Object::read(file, header.tail).and_then(end).unwrap_or(header.tail)
}

fn as_io(fault: Fault) -> io::Error {
    match fault {
        Fault::Io(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests;
