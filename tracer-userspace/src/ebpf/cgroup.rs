//! The root of the cgroup2 hierarchy: every socket of the node is in it, also where controllers are
//! still in hierarchies of version 1.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Opens it.
pub(super) fn root() -> io::Result<File> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let root = mounted(&mounts).find(|path| is_root(path)).ok_or(io::ErrorKind::NotFound)?;
    File::open(root)
}

/// The cgroup of a process, unless it is the root.
pub(super) fn of(pid: u32) -> io::Result<Option<PathBuf>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let own = below_root(&text);
    if own.is_empty() {
        return Ok(None);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let path = mounted(&mounts).find(|path| is_root(path)).map(|root| root.join(own));
    Ok(path.filter(|path| path.is_dir()))
}

/// `0::/system.slice/kubelet.service`. A cgroup namespace of our own shows the way up from its root
/// (`0::/../../system.slice/kubelet.service`), which ends at the true one.
fn below_root(text: &str) -> &str {
    let mut own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    while let Some(rest) = own.strip_prefix("..") {
        own = rest.trim_start_matches('/');
    }
    own
}

/// Which cgroup an opened folder is: one that is made anew at the same path is another.
pub(super) fn identity(folder: &File) -> io::Result<(u64, u64)> {
    folder.metadata().map(|it| (it.dev(), it.ino()))
}

/// Only a cgroup below the root has a type. What mountinfo gives as root is of no use: it is relative to
/// the cgroup namespace, so that a container's own cgroup is `/` and the true root `/../..`.
fn is_root(path: &Path) -> bool {
    path.join("cgroup.procs").exists() && !path.join("cgroup.type").exists()
}

/// Where cgroup2 is mounted: `41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw`.
fn mounted(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    mountinfo.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        file_system.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_from_a_namespace_s_root_is_left_out() {
        assert_eq!(below_root("1:cpu:/a\n0::/system.slice/kubelet.service\n"), "system.slice/kubelet.service");
        assert_eq!(below_root("0::/../../../system.slice/kubelet.service\n"), "system.slice/kubelet.service");
        assert_eq!((below_root("0::/\n"), below_root("0::/..\n"), below_root("1:cpu:/a\n")), ("", "", ""));
    }

    #[test]
    fn cgroup2_is_found_among_mounts() {
        let mounts = "\
            31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            34 31 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            40 31 0:38 /../.. /host/cgroup ro,relatime - cgroup2 cgroup2 rw\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let found: Vec<PathBuf> = mounted(mounts).collect();
        assert_eq!(found, [Path::new("/host/cgroup"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
