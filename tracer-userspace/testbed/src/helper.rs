//! The processes of a node, and how each is started. Tests have a program for each; `tracer selftest` is a single
//! binary and starts itself under another name.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// This program, even if its file was replaced or removed.
pub const ITSELF: &str = "/proc/self/exe";
/// The hidden command that runs a role.
pub const COMMAND: &str = "selftest-helper";

/// The role of a process of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Makes the probe attempts.
    Kubelet,
    /// Serves in a pod.
    Pod,
    /// Container runtime: runs CNI plugins.
    Crio,
    /// CNI plugin.
    Loopback,
    /// A client that is not a prober.
    Load,
}

impl Role {
    /// Name of its process. The prober's may differ.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Pod => "pod",
            Self::Crio => "crio",
            Self::Loopback => "loopback",
            Self::Load => "load",
        }
    }
}

#[derive(Clone, Debug)]
pub enum Programs {
    /// A program for each role in this directory, with the name of the role.
    In(PathBuf),
    /// This program runs every role.
    Itself,
}

impl Programs {
    /// In the directory of this program, or its parent for a test binary in `deps`.
    pub fn beside() -> Result<Self> {
        let exe = std::env::current_exe().context("path of this program")?;
        let dir = exe.parent().context("directory of this program")?;
        let up = dir.parent().filter(|_| dir.ends_with("deps"));
        Ok(Self::In(up.unwrap_or(dir).to_path_buf()))
    }

    /// The tracer under test, by default.
    pub fn tracer(&self) -> PathBuf {
        match self {
            Self::In(dir) => dir.join("tracer"),
            Self::Itself => ITSELF.into(),
        }
    }

    /// The command line of a process with the name `comm`. A symlink that it needs is made in `scratch`.
    pub(super) fn words(&self, role: Role, comm: &str, scratch: &Path) -> Result<Vec<OsString>> {
        match self {
            Self::In(dir) if comm == role.name() => Ok(vec![dir.join(comm).into()]),
            Self::In(dir) => Ok(vec![symlinked(&dir.join(role.name()), &scratch.join(comm))?.into()]),
            Self::Itself => Ok([ITSELF, COMMAND, role.name(), comm, "--"].map(OsString::from).to_vec()),
        }
    }
}

/// A symlink to the program, which gives its process another name.
fn symlinked(program: &Path, link: &Path) -> Result<PathBuf> {
    let Some(scratch) = link.parent() else { bail!("no directory for {}", link.display()) };
    if !link.is_symlink() {
        std::fs::create_dir_all(scratch)?;
        symlink(program, link).with_context(|| format!("make {}", link.display()))?;
    }
    Ok(link.to_path_buf())
}
