//! A cgroup of version 2 of its own for the prober, as systemd gives the kubelet one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A cgroup below the root; removed on drop, which must come after its processes are gone.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one; `None` where no hierarchy of version 2 is mounted.
    pub fn create(name: &str) -> Result<Option<Self>> {
        let Some(root) = root() else { return Ok(None) };
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Some(Self(path)))
    }

    /// Makes one whose processes get two hundredths of a processor; an error where there is no CPU controller.
    pub fn throttled(name: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("mounts")?;
        let has_cpu = |options: &str| options.split(',').any(|option| option == "cpu");
        let v1 = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find_map(|line| match line[..] {
            [_, path, "cgroup", options, ..] if has_cpu(options) => Some(Path::new(path).join(name)),
            _ => None,
        });
        if let Some(path) = v1 {
            fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
            let group = Self(path);
            group.write("cpu.cfs_period_us", "100000")?;
            group.write("cpu.cfs_quota_us", "2000")?;
            return Ok(group);
        }
        let root = root().context("no hierarchy of cgroups is mounted")?;
        fs::write(root.join("cgroup.subtree_control"), "+cpu").context("the CPU controller of cgroup2")?;
        let group = Self::create(name)?.context("no hierarchy of version 2")?;
        group.write("cpu.max", "2000 100000")?;
        Ok(group)
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

/// Where the hierarchy is mounted.
pub(super) fn root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    mount.split(' ').nth(1).map(|path| Path::new(path).to_path_buf())
}
