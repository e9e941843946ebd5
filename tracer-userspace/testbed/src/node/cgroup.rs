//! A cgroup of version 2 of its own for the prober, as systemd gives the kubelet one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context, Result, bail};

use crate::net::PREFIX;

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

    /// Makes a cgroup that gets two hundredths of a processor; an error where there is no CPU controller.
    pub fn throttled(name: &str) -> Result<Self> {
        Self::with_quota(name, "2000", "100000")
    }

    /// Makes cgroups that get a thousandth of a processor, all at once each second. The kernel counts their pressure.
    pub fn starved(name: &str) -> Result<(Vec<Self>, Undo)> {
        let group = Self::with_quota(name, "1000", "1000000")?;
        let quota = match cpu() {
            Some(Cpu::V1(_)) => Undo(group.0.join("cpu.cfs_quota_us"), "-1"),
            _ => Undo(group.0.join("cpu.max"), "max"),
        };
        let counts = group.0.join(PRESSURE).exists();
        let counting = if counts { None } else { Self::create(name)? };
        Ok((std::iter::once(group).chain(counting).collect(), quota))
    }

    fn with_quota(name: &str, quota: &str, period: &str) -> Result<Self> {
        match cpu().context("no CPU controller")? {
            Cpu::V1(root) => {
                let group = Self::below(&root, name)?;
                group.write("cpu.cfs_period_us", period)?;
                group.write("cpu.cfs_quota_us", quota)?;
                Ok(group)
            }
            Cpu::V2(root) => {
                let group = Self::below(&root, name)?;
                group.write("cpu.max", &format!("{quota} {period}"))?;
                Ok(group)
            }
        }
    }

    /// Makes one that is frozen with this process in it, until the guard goes.
    pub fn frozen(name: &str, by: Freezer, pid: u32) -> Result<(Self, Undo)> {
        let group = Self::below(&by.root().context("no freezer")?, name)?;
        group.add(pid)?;
        let (file, freeze, thaw) = by.words();
        let guard = Undo(group.0.join(file), thaw);
        group.write(file, freeze)?;
        let (events, line) = by.says();
        let began = Instant::now();
        while !fs::read_to_string(group.0.join(events))?.lines().any(|it| it == line) {
            if began.elapsed() > PATIENCE {
                bail!("{} does not freeze", group.0.display());
            }
            thread::yield_now();
        }
        Ok((group, guard))
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

/// A signal to all that wait takes microseconds.
const PATIENCE: Duration = Duration::from_secs(10);
const PRESSURE: &str = "cpu.pressure";

/// Which hierarchy freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freezer {
    /// Version 1.
    V1,
    /// Version 2.
    V2,
}

impl Freezer {
    fn root(self) -> Option<PathBuf> {
        match self {
            Self::V1 => first_version("freezer"),
            Self::V2 => root(),
        }
    }

    /// A group can be made in it.
    pub fn is_there(self) -> bool {
        let name = format!("{PREFIX}{}-need-freezer", std::process::id());
        let made = self.root().and_then(|root| Cgroup::below(&root, &name).ok());
        made.is_some_and(|group| group.0.join(self.words().0).exists())
    }

    /// The file, and what freezes and thaws.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::V1 => ("freezer.state", "FROZEN", "THAWED"),
            Self::V2 => ("cgroup.freeze", "1", "0"),
        }
    }

    /// Where it says that all is frozen.
    const fn says(self) -> (&'static str, &'static str) {
        match self {
            Self::V1 => ("freezer.state", "FROZEN"),
            Self::V2 => ("cgroup.events", "frozen 1"),
        }
    }
}

/// What is written to a file of a group when this goes. What version 1 has frozen cannot be killed before it is thawed, and
/// what gets no processor takes a minute to end.
#[derive(Debug)]
pub struct Undo(PathBuf, &'static str);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, self.1);
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
    if let Some(root) = first_version("cpu") {
        return Some(Cpu::V1(root));
    }
    let root = root()?;
    let on = fs::read_to_string(root.join(CONTROLLERS)).ok()?;
    on.split_whitespace().any(|name| name == "cpu").then_some(Cpu::V2(root))
}

/// Where version 1 has a controller.
fn first_version(controller: &str) -> Option<PathBuf> {
    let has = |options: &str| options.split(',').any(|option| option == controller);
    let mount = mounts().into_iter().find(|mount| mount.kind == "cgroup" && has(&mount.options))?;
    Some(mount.path)
}

/// The kernel counts the pressure of cgroups.
pub fn has_pressure() -> bool {
    root().is_some_and(|root| fs::read_to_string(root.join(PRESSURE)).is_ok())
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
    root().into_iter().chain(quota).chain(first_version("freezer")).collect()
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
