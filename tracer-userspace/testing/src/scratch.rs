//! Temporary files of a test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when the test ends, even if it fails.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-unit-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The path of a new file in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The same as an argument of a command.
    pub fn text(&self, name: impl AsRef<Path>) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Writes a file, and the folders that it is in. Returns its path.
    pub fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> String {
        let path = self.path(&name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
        std::fs::write(path, content).expect("a file");
        self.text(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file in a directory of its own.
pub struct TestFile {
    pub path: PathBuf,
    _directory: Scratch,
}

impl TestFile {
    pub fn new(name: &str, text: &str) -> Self {
        let directory = Scratch::new();
        Self { path: directory.file(name, text).into(), _directory: directory }
    }
}
