//! Programs of Debian's packages, fetched and unpacked under `target/tools`, not installed: an installed daemon starts,
//! and listens, as soon as it is unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::sh;

/// A program and where its libraries are.
pub(crate) struct Tool {
    /// The program.
    pub(crate) program: PathBuf,
    /// The root of the unpacked packages; none: it is installed.
    pub(crate) tree: Option<PathBuf>,
}

impl Tool {
    /// The program, ready to be given arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = sh::command(&self.program);
        if let Some(tree) = &self.tree {
            command.env("LD_LIBRARY_PATH", tree.join("usr/lib").join(triplet()));
        }
        command
    }

    /// A path inside of its packages.
    pub(crate) fn path(&self, rest: &str) -> PathBuf {
        self.tree.as_deref().unwrap_or(Path::new("/")).join(rest)
    }
}

/// Debian's name for this machine's libraries.
pub(crate) fn triplet() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// The program `path` (without its first slash): the installed one, else out of these packages. `None` and a line that
/// says why where there is neither.
pub(crate) fn find(path: &str, packages: &[&str]) -> Result<Option<Tool>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if let Some(program) = sh::find(name) {
        return Ok(Some(Tool { program, tree: None }));
    }
    let tree = sh::target().join("tools").join(packages.join("+"));
    if tree.join(path).is_file() {
        return Ok(Some(Tool { program: tree.join(path), tree: Some(tree) }));
    }
    match sh::step(&format!("fetching {name}"), || fetch(&tree, path, packages)) {
        Ok(()) => Ok(Some(Tool { program: tree.join(path), tree: Some(tree) })),
        // With a network that works, as in CI, it must be had.
        Err(error) if std::env::var_os("CI").is_some() => Err(error),
        Err(error) => {
            eprintln!("xtask: {name} is neither installed nor to be had, so it is SKIPPED: {error:#}");
            Ok(None)
        }
    }
}

/// Downloads the packages and unpacks them; the tree appears only when it is whole.
fn fetch(tree: &Path, path: &str, packages: &[&str]) -> Result<()> {
    let work = tree.with_extension("new");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    if download(&work, packages).is_err() {
        sh::capture(sh::command("apt-get").args(["-qq", "update"])).context("no package lists")?;
        download(&work, packages)?;
    }
    for package in fs::read_dir(&work)?.flatten().map(|entry| entry.path()) {
        sh::capture(sh::command("dpkg-deb").arg("--extract").arg(&package).arg(work.join("tree")))?;
    }
    if !work.join("tree").join(path).is_file() {
        bail!("the packages {} have no {path}", packages.join(", "));
    }
    let _ = fs::remove_dir_all(tree);
    fs::rename(work.join("tree"), tree)?;
    fs::remove_dir_all(&work).with_context(|| work.display().to_string())
}

fn download(into: &Path, packages: &[&str]) -> Result<()> {
    let mut apt = sh::command("apt-get");
    apt.current_dir(into).args(["-qq", "download"]).args(packages);
    sh::capture(&mut apt).map(drop)
}
