//! Reads pods and Services from files in place of the cluster API, as `kubectl get -o json|yaml` and the kubelet's
//! `/pods` print them. The same code reads the answers of the cluster API.

pub(super) mod api;
mod document;
pub(super) mod fuzzing;
mod pods;
mod runs;
mod services;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use document::{Document, Taken};
pub(super) use pods::pod_of;
pub use pods::read_pods;
pub use services::read_services;
pub(super) use services::{SERVICE_NAME, join, slice_of};
use tracer_terminal::error::os_message;

/// A larger file is refused.
const MAX_SIZE: u64 = 64 * 1024 * 1024;

/// Why a file cannot be used: one line, with the flag that named the file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{flag} {}: cannot be read: {}", path.display(), os_message(source))]
    Unreadable { flag: &'static str, path: PathBuf, source: io::Error },
    #[error("{flag} {}: larger than 64 MiB; give this node's objects only", path.display())]
    TooLarge { flag: &'static str, path: PathBuf },
    #[error("{flag} {}: line {line}, column {column}: {message}", path.display())]
    Syntax { flag: &'static str, path: PathBuf, line: usize, column: usize, message: String },
    #[error("{flag} {}: holds {found}, expected {expected}", path.display())]
    Kind { flag: &'static str, path: PathBuf, found: String, expected: &'static str },
}

/// Shows whether a file changed. It has the inode, too, because a file can be replaced within one tick of the file
/// system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64, u64, SystemTime, u64);

impl Stamp {
    /// Follows links: a mounted `ConfigMap` is a link.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self(file.dev(), file.ino(), file.modified().ok()?, file.len()))
    }
}

/// The text of a file, with its flag and path for errors.
struct Source<'a> {
    flag: &'static str,
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> Source<'a> {
    fn read(flag: &'static str, path: &'a Path) -> Result<Self, FileError> {
        let unreadable = |source| FileError::Unreadable { flag, path: path.into(), source };
        let file = File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(MAX_SIZE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_SIZE {
            return Err(FileError::TooLarge { flag, path: path.into() });
        }
        Ok(Self { flag, path, bytes })
    }

    /// Calls `add` for each document; YAML may have several. Skips documents of other kinds, if one is of the right kind.
    fn each_document(
        &self,
        expected: &'static str,
        mut take: impl FnMut(&Document<'_>) -> Result<Taken, FileError>,
    ) -> Result<(), FileError> {
        let (mut used, mut other) = (false, None);
        for document in document::split(self) {
            match take(&document)? {
                Taken::Used => used = true,
                Taken::Other(kind) => other = other.or(Some(kind)),
            }
        }
        if used { Ok(()) } else { Err(self.wrong_kind(other.flatten(), expected)) }
    }

    fn syntax(&self, line: usize, column: usize, message: &str) -> FileError {
        let message = message.lines().next().unwrap_or_default().to_owned();
        FileError::Syntax { flag: self.flag, path: self.path.into(), line, column, message }
    }

    fn wrong_kind(&self, kind: Option<String>, expected: &'static str) -> FileError {
        let found = kind.map_or_else(
            || "no Kubernetes object (there is no `kind`)".to_owned(),
            |kind| format!("a {}", word(&kind)),
        );
        FileError::Kind { flag: self.flag, path: self.path.into(), found, expected }
    }
}

/// The addresses in these texts, each of them once. A headless Service has "None".
fn addresses(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Vec<IpAddr> {
    let mut seen = HashSet::new();
    let all = texts.into_iter().filter_map(|text| text.as_ref().parse().ok());
    all.filter(|addr| seen.insert(*addr)).collect()
}

/// The kind, if the text can be the name of one. Other text of the file is not shown.
fn word(kind: &str) -> &str {
    let end = kind.find(|c: char| !c.is_ascii_alphanumeric() && c != ' ');
    if end.is_some() || kind.len() > 63 { "kind that is no word" } else { kind }
}
