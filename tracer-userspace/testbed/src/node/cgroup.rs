//! A cgroup of version 2 of its own for the prober, as systemd gives the kubelet one.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};

/// A cgroup below the root; removed on drop, which must come after its processes are gone.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one; `None` where no hierarchy of version 2 is mounted, or none that may be written.
    pub fn create(name: &str) -> Result<Option<Self>> {
        let Some(root) = root() else { return Ok(None) };
        match Self::below(&root, name) {
            Err(error) if is_closed(&error) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Makes one whose processes get two hundredths of a processor; an error where there is no CPU controller.
    pub fn throttled(name: &str) -> Result<Self> {
        match cpu().context("no CPU controller")? {
            Cpu::V1(root) => {
                let group = Self::below(&root, name)?;
                group.write("cpu.cfs_period_us", "100000")?;
                group.write("cpu.cfs_quota_us", "2000")?;
                Ok(group)
            }
            Cpu::V2(root) => {
                let group = Self::below(&root, name)?;
                group.write("cpu.max", "2000 100000")?;
                Ok(group)
            }
        }
    }

    fn below(root: &Path, name: &str) -> Result<Self> {
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let file = self.0.join(file);
        fs::write(&file, value).with_context(|| format!("write {value} to {}", file.display()))
    }

    /// Moves a process into it.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A hierarchy that this process may only read.
fn is_closed(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied))
}

/// The hierarchy that has the CPU controller.
enum Cpu {
    V1(PathBuf),
    V2(PathBuf),
}

fn cpu() -> Option<Cpu> {
    let has_cpu = |options: &str| options.split(',').any(|option| option == "cpu");
    let v1 = mounts().into_iter().find(|mount| mount.kind == "cgroup" && has_cpu(&mount.options));
    if let Some(mount) = v1 {
        return Some(Cpu::V1(mount.path));
    }
    let root = root()?;
    let on = fs::read_to_string(root.join(CONTROLLERS)).ok()?;
    on.split_whitespace().any(|name| name == "cpu").then_some(Cpu::V2(root))
}

/// The controllers of the groups below.
const CONTROLLERS: &str = "cgroup.subtree_control";

/// Gives the groups below the root a CPU controller, as systemd does: a setting of the whole machine.
pub fn enable_quota() {
    if let (None, Some(root)) = (cpu(), root()) {
        let _ = fs::write(root.join(CONTROLLERS), "+cpu");
    }
}

/// Where the hierarchy is mounted.
pub(super) fn root() -> Option<PathBuf> {
    mounts().into_iter().find(|mount| mount.kind == "cgroup2").map(|mount| mount.path)
}

/// Where groups of a run may be.
pub(super) fn roots() -> Vec<PathBuf> {
    let quota = cpu().map(|(Cpu::V1(path) | Cpu::V2(path))| path);
    root().into_iter().chain(quota).collect()
}

struct Mount {
    path: PathBuf,
    kind: String,
    options: String,
}

fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [_, path, kind, options, ..] => {
            Some(Mount { path: path.into(), kind: kind.to_owned(), options: options.to_owned() })
        }
        _ => None,
    };
    text.lines().filter_map(mount).collect()
}
