//! The processes of the node: who they are, and how each is started. A test has a program for each; `tracer selftest`
//! is one binary and starts itself again under another name.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// This program, whatever became of its file.
pub const ITSELF: &str = "/proc/self/exe";
/// The hidden command by which it takes a role.
pub const COMMAND: &str = "selftest-helper";

/// What a process of the node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Makes the probe attempts.
    Kubelet,
    /// Serves in a pod.
    Pod,
    /// Runs plugins.
    Crio,
    /// Is such a plugin.
    Loopback,
    /// A client that is no prober.
    Load,
}

impl Role {
    /// Name of its process; that of the prober may be another.
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

/// Where the helpers' programs are.
#[derive(Clone, Debug)]
pub enum Programs {
    /// One for each in this directory, called as its process is to be.
    In(PathBuf),
    /// This program is all of them.
    Itself,
}

impl Programs {
    /// Beside this program; one up for a test binary in `deps`.
    pub fn beside() -> Result<Self> {
        let exe = std::env::current_exe().context("path of this program")?;
        let dir = exe.parent().context("directory of this program")?;
        let up = dir.parent().filter(|_| dir.ends_with("deps"));
        Ok(Self::In(up.unwrap_or(dir).to_path_buf()))
    }

    /// The tracer under test, where nobody names another.
    pub fn tracer(&self) -> PathBuf {
        match self {
            Self::In(dir) => dir.join("tracer"),
            Self::Itself => ITSELF.into(),
        }
    }

    /// The command line of a process that is to be called `comm`. What must be made for that goes to `scratch`.
    pub(super) fn words(&self, role: Role, comm: &str, scratch: &Path) -> Result<Vec<OsString>> {
        match self {
            Self::In(dir) if comm == role.name() => Ok(vec![dir.join(comm).into()]),
            Self::In(dir) => Ok(vec![linked(&dir.join(role.name()), &scratch.join(comm))?.into()]),
            Self::Itself => Ok([ITSELF, COMMAND, role.name(), comm, "--"].map(OsString::from).to_vec()),
        }
    }
}

/// The same program under another name.
fn linked(program: &Path, link: &Path) -> Result<PathBuf> {
    let Some(scratch) = link.parent() else { bail!("no directory for {}", link.display()) };
    if !link.is_symlink() {
        std::fs::create_dir_all(scratch)?;
        symlink(program, link).with_context(|| format!("make {}", link.display()))?;
    }
    Ok(link.to_path_buf())
}
