//! Cgroups: one for the prober, as systemd makes for the kubelet, and some that throttle or freeze processes.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};

use crate::net::own_name;
use crate::wait::until;
use tracer_node::cgroups::{Hierarchy, Mounts};

/// A cgroup below the root. Removed on drop, after its processes must have ended.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup v2. `None` if no such hierarchy is mounted, or it is read-only.
    pub fn create(what: impl Display) -> Result<Option<Self>> {
        let Some(root) = root() else { return Ok(None) };
        match Self::own(&root, what) {
            Err(error) if is_read_only(&error) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Makes a cgroup that gets 2 % of a CPU. Fails without a CPU controller.
    pub fn throttled(what: &str) -> Result<Self> {
        const QUOTA: &str = "2000";
        const PERIOD: &str = "100000";
        let (hierarchy, root) = controlled(Hierarchy::Cpu).context("no CPU controller")?;
        let group = Self::own(&root, what)?;
        if hierarchy == Hierarchy::Unified {
            group.write("cpu.max", &format!("{QUOTA} {PERIOD}"))?;
        } else {
            group.write("cpu.cfs_period_us", PERIOD)?;
            group.write("cpu.cfs_quota_us", QUOTA)?;
        }
        Ok(group)
    }

    /// Makes such a cgroup and a child of it without a limit, which goes first.
    pub fn throttled_above(what: &str) -> Result<[Self; 2]> {
        let parent = Self::throttled(what)?;
        Ok([Self::below(&parent.0, "own")?, parent])
    }

    /// Makes two cgroups with a common parent. While the neighbour uses a CPU, the other one gets a ten-thousandth of it.
    ///
    /// The pressure of its processes must be counted. If the hierarchy does not do that, there is one more cgroup, of
    /// version 2, for the same processes.
    pub fn starved() -> Result<Starved> {
        const NAME: &str = "starved";
        let (hierarchy, root) = controlled(Hierarchy::Cpu).context("no CPU controller")?;
        // The least, the usual and the greatest.
        let (file, [few, usual, most], ratio) = match hierarchy {
            Hierarchy::Unified => ("cpu.weight", ["1", "100", "10000"], 10_000),
            _ => ("cpu.shares", ["2", "1024", "262144"], 131_072),
        };
        let parent = Self::own(&root, NAME)?;
        // On a busy machine, others would cut the first turn short. Then the next one would come soon.
        parent.write(file, most)?;
        if hierarchy == Hierarchy::Unified {
            parent.write(CONTROLLERS, "+cpu")?;
        }
        let [own, neighbour] = [Self::below(&parent.0, "own")?, Self::below(&parent.0, "neighbour")?];
        own.write(file, few)?;
        neighbour.write(file, most)?;
        let counts = own.0.join(PRESSURE).exists();
        let counting = if counts { None } else { Self::create(NAME)? };
        Ok(Starved {
            own: std::iter::once(own).chain(counting).collect(),
            neighbour,
            parent,
            usual: (file, usual),
            ratio,
        })
    }

    /// Makes a cgroup that may have [`MEMORY`], and nothing in the swap. Fails without a memory controller.
    pub fn small(what: &str) -> Result<Self> {
        let (hierarchy, root) = controlled(Hierarchy::Memory).context("no memory controller")?;
        let group = Self::own(&root, what)?;
        let (limit, swap, most) = match hierarchy {
            Hierarchy::Unified => ("memory.max", "memory.swap.max", 0),
            // With the memory.
            _ => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", MEMORY),
        };
        group.write(limit, &MEMORY.to_string())?;
        if group.0.join(swap).exists() {
            group.write(swap, &most.to_string())?;
        }
        Ok(group)
    }

    /// Makes a cgroup with this process, or a child of it that has the process, and freezes it until the guard is
    /// dropped. The child goes first.
    pub fn frozen(by: Freezer, above: bool, pid: u32) -> Result<(Vec<Self>, Undo)> {
        let group = Self::own(&by.root().context("no freezer")?, "frozen")?;
        let own = above.then(|| Self::below(&group.0, "own")).transpose()?;
        own.as_ref().unwrap_or(&group).add(pid)?;
        let [(file, freeze), (_, thaw), (events, line)] = by.files();
        let guard = Undo(group.0.join(file), thaw);
        group.write(file, freeze)?;
        let is_frozen = || Ok(fs::read_to_string(group.0.join(events))?.lines().any(|it| it == line));
        until(&format!("{} is frozen", group.0.display()), is_frozen)?;
        Ok((own.into_iter().chain([group]).collect(), guard))
    }

    /// Makes a cgroup with the name that the kubelet gives that of the pod with this uid. The parent goes last.
    pub fn of_pod(uid: &str) -> Result<[Self; 2]> {
        let parent = Self::own(&root().context("no cgroup of version 2")?, "pods")?;
        Ok([Self::below(&parent.0, &format!("pod{uid}"))?, parent])
    }

    /// Makes a cgroup with a name of this run.
    fn own(root: &Path, what: impl Display) -> Result<Self> {
        Self::below(root, &own_name(what))
    }

    fn below(root: &Path, name: &str) -> Result<Self> {
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let file = self.0.join(file);
        fs::write(&file, value).with_context(|| format!("write {value} to {}", file.display()))
    }

    /// Moves a process into the cgroup.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }
}

#[derive(Debug)]
pub struct Starved {
    /// The cgroups of each process that gets hardly any CPU time.
    pub own: Vec<Cgroup>,
    pub neighbour: Cgroup,
    parent: Cgroup,
    usual: (&'static str, &'static str),
    /// How much more CPU time the neighbour gets.
    pub ratio: u32,
}

impl Starved {
    /// Ends the priority of all its processes over those of the machine, and returns the cgroups.
    pub fn settle(self) -> Result<impl Iterator<Item = Cgroup>> {
        let (file, weight) = self.usual;
        self.parent.write(file, weight)?;
        Ok(self.own.into_iter().chain([self.neighbour, self.parent]))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The memory of a [`Cgroup::small`] one: more than a server needs that is in it.
pub const MEMORY: usize = 64 << 20;

const PRESSURE: &str = "cpu.pressure";

/// The freezer of cgroup version 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freezer {
    V1,
    V2,
}

impl Freezer {
    fn root(self) -> Option<PathBuf> {
        match self {
            Self::V1 => mounted(Hierarchy::Freezer),
            Self::V2 => root(),
        }
    }

    /// Whether it can be used here.
    pub fn is_available(self) -> bool {
        let made = self.root().and_then(|root| Cgroup::own(&root, "need-freezer").ok());
        made.is_some_and(|group| group.0.join(self.files()[0].0).exists())
    }

    /// Which word freezes, and which one thaws, each with its file. Last, the line of a file which shows that all
    /// processes are frozen.
    const fn files(self) -> [(&'static str, &'static str); 3] {
        match self {
            Self::V1 => [("freezer.state", "FROZEN"), ("freezer.state", "THAWED"), ("freezer.state", "FROZEN")],
            Self::V2 => [("cgroup.freeze", "1"), ("cgroup.freeze", "0"), ("cgroup.events", "frozen 1")],
        }
    }
}

/// Writes a word to a file of a cgroup on drop, so that its processes can end.
///
/// Processes that cgroup v1 froze cannot be killed before they are thawed.
#[derive(Debug)]
pub struct Undo(PathBuf, &'static str);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, self.1);
    }
}

fn is_read_only(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied))
}

/// The hierarchy that has a controller, given by its hierarchy of version 1, and where it is mounted.
fn controlled(by: Hierarchy) -> Option<(Hierarchy, PathBuf)> {
    if let Some(root) = mounted(by) {
        return Some((by, root));
    }
    let (root, controller) = (root()?, if by == Hierarchy::Cpu { "cpu" } else { "memory" });
    let on = fs::read_to_string(root.join(CONTROLLERS)).ok()?;
    on.split_whitespace().any(|name| name == controller).then_some((Hierarchy::Unified, root))
}

fn mounted(hierarchy: Hierarchy) -> Option<PathBuf> {
    Mounts::read().ok()?.places(hierarchy).next().map(Path::to_owned)
}

/// Whether the kernel counts the pressure of cgroups.
pub fn has_pressure() -> bool {
    root().is_some_and(|root| fs::read_to_string(root.join(PRESSURE)).is_ok())
}

/// The file with the controllers of child cgroups.
const CONTROLLERS: &str = "cgroup.subtree_control";

/// Enables the controllers for cgroups below the root, as systemd does. This changes the whole machine.
pub fn enable_limits() {
    for (by, add) in [(Hierarchy::Cpu, "+cpu"), (Hierarchy::Memory, "+memory")] {
        if let (None, Some(root)) = (controlled(by), root()) {
            let _ = fs::write(root.join(CONTROLLERS), add);
        }
    }
}

pub fn root() -> Option<PathBuf> {
    mounted(Hierarchy::Unified)
}

/// All directories where a run may make cgroups.
pub(super) fn roots() -> Vec<PathBuf> {
    let limits = [Hierarchy::Cpu, Hierarchy::Memory].into_iter().filter_map(controlled).map(|(_, path)| path);
    root().into_iter().chain(limits).chain(mounted(Hierarchy::Freezer)).collect()
}
