//! Finds the folder of a process's cgroup, if its hierarchy is mounted here.
//!
//! The kernel prints the cgroup of a process (`/proc/PID/cgroup`) and the root of a mount (mountinfo) relative to the
//! root of the reader's cgroup namespace. Such a path goes up by `..` to the nearest common ancestor, and down from
//! there by names (`cgroup_path_ns`, kernel/cgroup/cgroup.c; `kernfs_path_from_node`, fs/kernfs/dir.c). On version 2
//! runtimes usually give an unprivileged container its own cgroup namespace, on version 1 they do not
//! (containerd/cri#1371, #1415).

use std::cell::OnceCell;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::cgroup;
use super::procfs::read_text;

/// How many folders are searched for the root of our cgroup namespace: a node has some thousands.
const MAX_FOLDERS: usize = 32_768;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Version 2. The others are those of version 1 with the controller of this name.
    Unified,
    Cpu,
    Freezer,
    Memory,
    Pids,
}

/// A path relative to the root of our cgroup namespace: so many levels up, then down by these names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VisiblePath {
    up: usize,
    names: PathBuf,
}

impl VisiblePath {
    fn of(path: &str) -> Self {
        let all = || path.split('/').filter(|name| !name.is_empty());
        let up = all().take_while(|name| *name == "..").count();
        Self { up, names: all().skip(up).collect() }
    }
}

#[derive(Debug)]
struct Mount {
    hierarchy: Hierarchy,
    root: VisiblePath,
    at: PathBuf,
    /// The path from the mount's root to the root of our namespace; set by the first search.
    ours: OnceCell<Option<PathBuf>>,
}

#[derive(Debug, Default)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    pub fn read() -> io::Result<Self> {
        read_text("/proc/self/mountinfo").map(|text| Self::of(&text))
    }

    pub fn of(mountinfo: &str) -> Self {
        Self(mountinfo.lines().filter_map(mount).collect())
    }

    /// Where one hierarchy is mounted.
    pub fn places(&self, hierarchy: Hierarchy) -> impl Iterator<Item = &Path> {
        self.0.iter().filter(move |mount| mount.hierarchy == hierarchy).map(|mount| mount.at.as_path())
    }

    /// The folder of the cgroup that the text of `/proc/PID/cgroup` names. It is an error if it is not found: the
    /// root's counters are no substitute.
    pub fn folder(&self, text: &str, hierarchy: Hierarchy) -> io::Result<PathBuf> {
        let path = path_in(text, hierarchy).ok_or(io::ErrorKind::NotFound)?;
        let visible = VisiblePath::of(path);
        let mounts = self.0.iter().filter(|mount| mount.hierarchy == hierarchy);
        let found = mounts.filter_map(|mount| self.below(mount, &visible)).find(|folder| folder.is_dir());
        let lost = || format!("its cgroup {path} (as seen from here) is in no hierarchy that is mounted here");
        found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, lost()))
    }

    /// The folder of a path below a mount, if the mount's root is that path or an ancestor of it.
    fn below(&self, mount: &Mount, path: &VisiblePath) -> Option<PathBuf> {
        let between = mount.root.up.checked_sub(path.up)?;
        if between == 0 {
            let names = path.names.strip_prefix(&mount.root.names).ok()?;
            return Some(mount.at.iter().chain(names).collect());
        }
        let ours = mount.ours.get_or_init(|| self.locate_ours(mount)).as_ref()?;
        Some(mount.at.iter().chain(ours.iter().take(between)).chain(&path.names).collect())
    }

    /// Finds the root of our namespace below a mount with an ancestor as root: the folder with the inode of our own
    /// mount.
    fn locate_ours(&self, mount: &Mount) -> Option<PathBuf> {
        let same = |it: &&Mount| it.hierarchy == mount.hierarchy && it.root == VisiblePath::of("/");
        let ours = fs::metadata(&self.0.iter().find(same)?.at).ok()?;
        let above = fs::metadata(&mount.at).ok()?;
        let known = mount.root.names.as_os_str().is_empty() && ours.dev() == above.dev();
        known.then(|| locate(&mount.at, mount.root.up, ours.ino(), &mut { MAX_FOLDERS }))?
    }
}

/// Finds the folder with this inode number, exactly so many levels below.
fn locate(folder: &Path, levels: usize, inode: u64, left: &mut usize) -> Option<PathBuf> {
    *left = left.checked_sub(1)?;
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    if levels == 1 {
        return folders.find(|entry| entry.ino() == inode).map(|entry| entry.file_name().into());
    }
    folders.find_map(|entry| {
        let below = locate(&entry.path(), levels - 1, inode, left)?;
        Some(Path::new(&entry.file_name()).join(below))
    })
}

/// The controllers of version 1 that are read.
const CONTROLLERS: [(&str, Hierarchy); 4] = [
    ("cpu", Hierarchy::Cpu),
    ("freezer", Hierarchy::Freezer),
    ("memory", Hierarchy::Memory),
    ("pids", Hierarchy::Pids),
];

/// The path of a process in one hierarchy, from the text of `/proc/PID/cgroup`.
pub(crate) fn path_in(text: &str, hierarchy: Hierarchy) -> Option<&str> {
    let controller = CONTROLLERS.iter().find(|(_, of)| *of == hierarchy).map(|(name, _)| *name);
    let fits = |controllers: &str| controller.map_or(controllers.is_empty(), |name| cgroup::has(controllers, name));
    let mut lines = text.lines().filter_map(cgroup::hierarchy);
    lines.find(|(controllers, _)| fits(controllers)).map(|(_, path)| path)
}

/// The folder of a cgroup other than the root: the root is never frozen or throttled, and has no pressure files.
pub(super) fn below_the_root(cgroups: &str, hierarchy: Hierarchy, mounts: &Mounts) -> Option<PathBuf> {
    path_in(cgroups, hierarchy).filter(|path| *path != "/")?;
    mounts.folder(cgroups, hierarchy).ok()
}

/// Whether a hierarchy of version 1 has a controller for sockets, from the text of `/proc/PID/cgroup`.
pub fn has_socket_controller(text: &str) -> bool {
    let all = || text.lines().filter_map(cgroup::hierarchy);
    all().any(|(controllers, _)| cgroup::has(controllers, "net_cls") || cgroup::has(controllers, "net_prio"))
}

/// Whether a process is in the root of a hierarchy. Before anybody mounts version 2, the kernel does not name it
/// (`proc_cgroup_show`: `cgrp_dfl_visible`), and all processes are in its root.
pub fn is_in_root(text: &str, hierarchy: Hierarchy) -> bool {
    !text.is_empty() && path_in(text, hierarchy).is_none_or(|path| path == "/")
}

/// `41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw`
fn mount(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut kind = file_system.split(' ');
    let hierarchy = match kind.next()? {
        "cgroup2" => Hierarchy::Unified,
        "cgroup" => {
            let options = kind.nth(1)?;
            CONTROLLERS.into_iter().find(|(controller, _)| cgroup::has(options, controller))?.1
        }
        _ => return None,
    };
    let mut fields = mount.split(' ').skip(3);
    let (root, at) = (VisiblePath::of(fields.next()?), PathBuf::from(fields.next()?));
    Some(Mount { hierarchy, root, at, ours: OnceCell::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::Scratch;

    /// A directory that contains these folders.
    fn with(folders: &[&str]) -> Scratch {
        let scratch = Scratch::new();
        folders.iter().for_each(|folder| fs::create_dir_all(scratch.path(folder)).expect("a folder"));
        scratch
    }

    fn found(mounts: &Mounts, path: &str) -> io::Result<PathBuf> {
        mounts.folder(&format!("0::{path}\n"), Hierarchy::Unified)
    }

    /// The DaemonSet's container has its own cgroup at the usual place, and the whole hierarchy at another.
    #[test]
    fn a_path_that_ends_at_a_common_ancestor_is_found_from_there() {
        let folders = ["kube/burst/other/c2", "kube/burst/own/c1", "kube/best/pod/c3", "system/kubelet"];
        let scratch = with(&folders);
        let root = scratch.root();
        let mounts = Mounts::of(&format!(
            "40 31 0:38 /../../../.. {} ro - cgroup2 cgroup2 rw\n41 31 0:38 / {} ro - cgroup2 cgroup2 rw\n",
            root.display(),
            root.join("kube/burst/own/c1").display(),
        ));
        let at = |path: &str| found(&mounts, path).ok();
        assert_eq!(at("/../../../../system/kubelet"), Some(root.join("system/kubelet")));
        assert_eq!(at("/../../../best/pod/c3"), Some(root.join("kube/best/pod/c3")));
        assert_eq!(at("/../../other/c2"), Some(root.join("kube/burst/other/c2")));
        assert_eq!(at("/.."), Some(root.join("kube/burst/own")));
        assert_eq!(at("/"), Some(root.join("kube/burst/own/c1")));
        assert_eq!(at("/../../../.."), Some(root.to_owned()), "the root");
        assert_eq!((at("/../../gone"), at("/../../../../../above")), (None, None), "never a wrong folder");
    }

    #[test]
    fn a_cgroup_outside_of_all_mounts_is_not_found() {
        let scratch = with(&["a/b"]);
        let mounted = |root: &str| {
            Mounts::of(&format!("41 31 0:38 {root} {} rw - cgroup2 cgroup2 rw\n", scratch.root().display()))
        };
        assert_eq!(found(&mounted("/"), "/a/b").ok(), Some(scratch.path("a/b")));
        assert_eq!(found(&mounted("/docker/x"), "/docker/x/a").ok(), Some(scratch.path("a")));
        for (root, path) in [("/", "/../a"), ("/x", "/a"), ("/../..", "/../a"), ("/../x", "/a")] {
            let error = found(&mounted(root), path).expect_err("nothing");
            assert!(error.to_string().contains(path), "{error}");
        }
        assert!(Mounts::default().folder("1:cpu:/a\n", Hierarchy::Unified).is_err());
    }

    /// Version 2 is not named before anybody mounts it.
    #[test]
    fn every_process_is_in_the_root_of_a_hierarchy_that_is_not_named() {
        let is_in_root = |text| is_in_root(text, Hierarchy::Unified);
        assert!(is_in_root("2:cpu:/kubepods/pod1\n") && is_in_root("2:cpu:/kubepods/pod1\n0::/\n"));
        assert!(!is_in_root("0::/kubepods/pod1\n") && !is_in_root("0::/..\n") && !is_in_root(""));
    }

    #[test]
    fn hierarchies_are_distinguished() {
        let text = "9:name=systemd:/s\n2:cpu,cpuacct:/kubepods/pod1\n0::/other\n";
        let path = |hierarchy| path_in(text, hierarchy);
        assert_eq!((path(Hierarchy::Cpu), path(Hierarchy::Unified)), (Some("/kubepods/pod1"), Some("/other")));
        let mounts = Mounts::of(
            "\
            31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime shared:7 - cgroup cgroup rw,cpu,cpuacct\n\
            34 31 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            40 31 0:38 /../.. /host/cgroup ro,relatime - cgroup2 cgroup2 rw\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n",
        );
        let places = |hierarchy| mounts.places(hierarchy).collect::<Vec<_>>();
        assert_eq!(places(Hierarchy::Cpu), [Path::new("/sys/fs/cgroup/cpu")]);
        assert_eq!(places(Hierarchy::Unified), [Path::new("/host/cgroup"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
