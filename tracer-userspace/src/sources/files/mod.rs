//! Pods and Services from files, as `kubectl get -o json|yaml` and the kubelet's `/pods` print them, in place of the cluster API.
//! The cluster API's own answers are read by the same code.

pub(super) mod api;
mod pods;
mod runs;
mod services;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(super) use pods::pod_of;
pub use pods::read_pods;
pub use services::read_services;
pub(super) use services::{Slice, join, service_of, slice_of};

/// Above this a file is not what it should be.
const MAX_SIZE: u64 = 64 * 1024 * 1024;

/// What is wrong with a file: one line, with the flag that named it.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FileError {
    #[error("{flag} {}: cannot be read: {source}", path.display())]
    Unreadable { flag: &'static str, path: PathBuf, source: io::Error },
    #[error("{flag} {}: larger than 64 MiB; give this node's objects only", path.display())]
    TooLarge { flag: &'static str, path: PathBuf },
    #[error("{flag} {}: line {line}, column {column}: {message}", path.display())]
    Syntax { flag: &'static str, path: PathBuf, line: usize, column: usize, message: String },
    #[error("{flag} {}: holds {found}, expected {expected}", path.display())]
    Kind { flag: &'static str, path: PathBuf, found: String, expected: &'static str },
}

impl FileError {
    /// The flag that named the file.
    #[must_use]
    pub const fn flag(&self) -> &'static str {
        match self {
            Self::Unreadable { flag, .. } | Self::TooLarge { flag, .. } => flag,
            Self::Syntax { flag, .. } | Self::Kind { flag, .. } => flag,
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Unreadable { path, .. } | Self::TooLarge { path, .. } => path,
            Self::Syntax { path, .. } | Self::Kind { path, .. } => path,
        }
    }
}

/// Whether a file changed: modification time and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(SystemTime, u64);

impl Stamp {
    /// Follows links, as a mounted `ConfigMap` is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self(file.modified().ok()?, file.len()))
    }
}

/// A file's text and what is needed to complain about it.
struct Source<'a> {
    flag: &'static str,
    path: &'a Path,
    bytes: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    kind: Option<String>,
}

/// The items of a list; `items: null` is what an empty one is to some writers.
#[derive(Deserialize)]
struct Items<T> {
    #[serde(default = "Option::default")]
    items: Option<Vec<T>>,
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

    fn kind(&self) -> Result<Option<String>, FileError> {
        self.decode::<Header>().map(|header| header.kind)
    }

    fn decode<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        let first = self.bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if matches!(first, Some(b'{' | b'[')) {
            serde_json::from_slice(&self.bytes).map_err(|error| self.json_error(&error))
        } else {
            serde_yaml_ng::from_slice(&self.bytes).map_err(|error| self.yaml_error(&error))
        }
    }

    fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, FileError> {
        Ok(self.decode::<Items<T>>()?.items.unwrap_or_default())
    }

    fn json_error(&self, error: &serde_json::Error) -> FileError {
        let text = error.to_string();
        // The place is printed in front.
        let message = text.split(" at line ").next().unwrap_or_default();
        self.syntax(error.line(), error.column(), message)
    }

    fn yaml_error(&self, error: &serde_yaml_ng::Error) -> FileError {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let text = error.to_string();
        self.syntax(line, column, text.split(" at line ").next().unwrap_or_default())
    }

    fn syntax(&self, line: usize, column: usize, message: &str) -> FileError {
        let message = message.lines().next().unwrap_or_default().to_owned();
        FileError::Syntax { flag: self.flag, path: self.path.into(), line, column, message }
    }

    fn wrong_kind(&self, kind: Option<String>, expected: &'static str) -> FileError {
        let found =
            kind.map_or_else(|| "no Kubernetes object (there is no `kind`)".to_owned(), |kind| format!("a {kind}"));
        FileError::Kind { flag: self.flag, path: self.path.into(), found, expected }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::path::PathBuf;

    /// A file that is gone when the test ends.
    pub(crate) struct TestFile(pub(crate) PathBuf);

    impl TestFile {
        pub(crate) fn new(name: &str, text: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tracer-{}-{name}", std::process::id()));
            std::fs::write(&path, text).expect("temporary file");
            Self(path)
        }
    }

    impl Drop for TestFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}
