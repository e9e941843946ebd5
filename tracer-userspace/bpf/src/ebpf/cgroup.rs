//! The root of the cgroup2 hierarchy, and the cgroups of probers. Every socket of the node is in this hierarchy, even if
//! controllers are still in hierarchies of version 1.

use std::collections::BTreeMap;
use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};
use tracer_node::cgroups::{Hierarchy, Mounts, is_in_root};

/// The limit of cgroups that a program is attached to at the same time. A node has only a few probers.
const MAX: usize = 256;

/// Why a prober's cgroup is not its own.
pub(super) const IN_ROOT: &str = "it is in the root of the cgroups, as everybody";

pub(super) fn root() -> io::Result<File> {
    if let Some(path) = Mounts::read()?.places(Hierarchy::Unified).find(|path| is_root(path)) {
        return File::open(path);
    }
    let none = |_| io::Error::new(io::ErrorKind::NotFound, "the root of the cgroup2 hierarchy is not mounted here");
    let mount = mounted_nowhere().map_err(none)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
    // In a cgroup namespace of our own, this is not the root.
    if is_root(&path) { File::open(path) } else { Err(none(Errno::NOENT)) }
}

/// A mount of the hierarchy that is in no folder, and ends with its files. Where cgroups are of version 1 alone, nobody
/// has mounted it. Needs `CAP_SYS_ADMIN`.
fn mounted_nowhere() -> Result<OwnedFd, Errno> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// The cgroup of a process; `None` if it is the root. It is an error if the cgroup cannot be found.
pub(super) fn of_process(pid: u32) -> io::Result<Option<PathBuf>> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let mounts = Mounts::read()?;
    if mounts.places(Hierarchy::Unified).next().is_none() && is_in_root(&text, Hierarchy::Unified) {
        return Ok(None);
    }
    let folder = mounts.folder(&text, Hierarchy::Unified)?;
    Ok(Some(folder).filter(|folder| !is_root(folder)))
}

/// Device and inode of a cgroup's folder: a new cgroup at the same path has another inode.
type Identity = (u64, u64);

fn identity(folder: &fs::Metadata) -> Identity {
    (folder.dev(), folder.ino())
}

/// The cgroups that a program is attached to. The root has no folder here, because it is never removed.
#[derive(Debug)]
pub(super) struct Attached<L>(BTreeMap<Identity, (Option<PathBuf>, L)>);

impl<L> Default for Attached<L> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<L> Attached<L> {
    /// Opens a cgroup, unless the program is already attached to it.
    pub(super) fn open(&self, folder: Option<&Path>) -> io::Result<Option<File>> {
        let file = folder.map_or_else(root, File::open)?;
        let known = self.0.contains_key(&identity(&file.metadata()?));
        Ok((!known).then_some(file))
    }

    /// Removes and returns the links of cgroups that no longer exist. Each start of a prober makes a new cgroup.
    pub(super) fn take_gone(&mut self) -> Vec<L> {
        let is_gone = |of: Identity, folder: &Option<PathBuf>| {
            folder.as_ref().is_some_and(|folder| fs::metadata(folder).map_or(true, |now| identity(&now) != of))
        };
        self.0.extract_if(.., |of, (folder, _)| is_gone(*of, folder)).map(|(_, (_, link))| link).collect()
    }

    /// Attaches the program to an opened cgroup; false if it is refused. It is an error if there is no room,
    /// or if the cgroup is gone.
    pub(super) fn add(
        &mut self,
        file: &File,
        folder: Option<PathBuf>,
        attach: impl FnOnce() -> Option<L>,
    ) -> io::Result<bool> {
        self.take_gone();
        if self.0.len() >= MAX {
            return Err(io::Error::other(format!("{MAX} cgroups have the program already")));
        }
        let Some(link) = attach() else { return Ok(false) };
        self.0.insert(identity(&file.metadata()?), (folder, link));
        Ok(true)
    }
}

/// Only a cgroup below the root has a type. The root in mountinfo is relative to the cgroup namespace: in a container, its own
/// cgroup is `/`, and the true root is `/../..`.
fn is_root(path: &Path) -> bool {
    path.join("cgroup.procs").exists() && !path.join("cgroup.type").exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::Scratch;

    #[test]
    fn the_cgroup_of_an_exited_process_is_an_error() {
        assert!(of_process(0).is_err());
    }

    #[test]
    fn removed_cgroups_make_room_for_new_ones() {
        let scratch = Scratch::new();
        let folder = |number: usize| scratch.path(number.to_string());
        let mut attached = Attached::default();
        let add = |attached: &mut Attached<usize>, number: usize| {
            fs::create_dir_all(folder(number)).expect("a folder");
            let file = attached.open(Some(&folder(number))).expect("opened").expect("a new one");
            attached.add(&file, Some(folder(number)), || Some(number))
        };
        for number in 0..MAX {
            assert!(add(&mut attached, number).expect("room"));
        }
        assert!(attached.open(Some(&folder(7))).expect("opened").is_none(), "it is known");
        assert!(attached.take_gone().is_empty());
        let full = add(&mut attached, MAX).expect_err("full").to_string();
        assert!(full.starts_with("256 cgroups"), "{full}");
        fs::remove_dir(folder(3)).expect("removed");
        // Folder 8 gets the inode of 9: neither path has its old cgroup.
        fs::rename(folder(8), scratch.path("moved")).expect("moved");
        fs::rename(folder(9), folder(8)).expect("another at its path");
        let mut gone = attached.take_gone();
        gone.sort_unstable();
        assert_eq!(gone, [3, 8, 9]);
        assert!(add(&mut attached, MAX).expect("room again"));
    }
}
