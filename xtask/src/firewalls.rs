//! Debian's ufw and firewalld, fetched and kept for all working trees, but not installed: firewalld starts as soon as it is, and
//! closes the machine. Tests install them into a root of their own (`tracer-userspace/tests/common/root.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::sh;
use crate::vm::kernels;

/// Where the packages are kept.
pub(crate) fn directory() -> Result<PathBuf> {
    kernels::cache("firewalls")
}

/// Fetches them with what they need and this machine lacks, if that was not done. Only root runs the tests.
pub(crate) fn ensure() -> Result<()> {
    let place = directory()?;
    if place.is_dir() || !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    match sh::step("fetching ufw and firewalld", || fetch(&place)) {
        // With a network that works, as in CI, they must be had.
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!("xtask: ufw and firewalld are not to be had, so their tests are SKIPPED: {error:#}");
            Ok(())
        }
        ended => ended,
    }
}

/// The folder appears only when it is whole.
fn fetch(place: &Path) -> Result<()> {
    let work = place.with_extension("new");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(work.join("partial")).with_context(|| work.display().to_string())?;
    if download(&work).is_err() {
        sh::capture(sh::command("apt-get").args(["-qq", "update"])).context("no package lists")?;
        download(&work)?;
    }
    fs::remove_dir_all(work.join("partial"))?;
    fs::rename(&work, place).with_context(|| place.display().to_string())
}

/// Nothing of the system changes: not even its lock is taken.
fn download(into: &Path) -> Result<()> {
    let mut apt = sh::command("apt-get");
    apt.arg("-o").arg(format!("Dir::Cache::archives={}", into.display()));
    apt.args(["-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root", "-qq", "install", "--download-only"]);
    apt.args(["--yes", "--reinstall", "--no-install-recommends", "ufw", "firewalld"]);
    sh::capture(&mut apt).map(drop)
}
