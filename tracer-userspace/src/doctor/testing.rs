//! Nodes made of files, for tests.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::view::View;

/// A node's files in a folder that goes away with its test.
pub(super) struct Tree(PathBuf);

impl Tree {
    /// Paths and contents.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        for (path, content) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
            std::fs::write(&path, content).expect("file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        }
        Self(root)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.clone()
    }

    pub(super) fn view(&self) -> View {
        View::of_files(self.0.clone(), None)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
