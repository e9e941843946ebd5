//! Where the page is written: stdout, or a file. An existing file is replaced only if it is such a page.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::input::Input;
use tracer_terminal::error::{self, Error};

/// How each page begins.
pub(super) const BEGINS: &str = "<!DOCTYPE html>";
const FLAG: &str = "--output-file";

#[derive(Debug)]
pub(super) enum Target {
    Stdout,
    /// A regular file, which may not exist yet.
    File(PathBuf),
    /// An existing pipe or device.
    Other(PathBuf),
}

impl Target {
    /// Refuses harmful targets before anything is read: a terminal, one of the inputs, a file that is no page.
    pub(super) fn new(path: Option<&Path>, inputs: &[Input]) -> Result<Self, Error> {
        let Some(path) = path else {
            if io::stdout().is_terminal() {
                return Err(Error::Usage("report: the page is HTML: name a file (--output-file report.html)".into()));
            }
            return Ok(Self::Stdout);
        };
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::File(path.to_owned())),
            Err(error) => return Err(Error::file(FLAG, path, error)),
        };
        if meta.is_dir() {
            return Err(Error::file(FLAG, path, io::Error::from_raw_os_error(libc::EISDIR)));
        }
        if !meta.is_file() {
            return Ok(Self::Other(path.to_owned()));
        }
        let is_input = inputs.iter().any(|input| input.inode == Some((meta.dev(), meta.ino())));
        if is_input || !is_replaceable(path, meta.len()) {
            let what = if is_input { "is one of the inputs" } else { "exists, and is no page" };
            return Err(Error::Usage(format!("{FLAG} {}: {what}: choose another name", path.display())));
        }
        Ok(Self::File(path.to_owned()))
    }

    pub(super) fn write(&self, page: &str) -> Result<(), Error> {
        match self {
            Self::Stdout => error::print(&mut io::stdout(), page.as_bytes()),
            Self::File(path) => replace(path, page).map_err(|error| Error::file(FLAG, path, error)),
            Self::Other(path) => {
                let opened = OpenOptions::new().write(true).open(path);
                let written = opened.and_then(|mut file| file.write_all(page.as_bytes()));
                written.map_err(|error| Error::file(FLAG, path, error))
            }
        }
    }
}

/// Whether the file is empty, or a page.
fn is_replaceable(path: &Path, size: u64) -> bool {
    let mut head = [0; BEGINS.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    size == 0 || read.is_ok() && head.eq_ignore_ascii_case(BEGINS.as_bytes())
}

/// Writes a new file and renames it, so that readers see the old page until the new one is complete.
fn replace(path: &Path, page: &str) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(page.as_bytes()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}
