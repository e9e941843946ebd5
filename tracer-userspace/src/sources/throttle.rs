//! How often the processes of a network namespace were held back for want of CPU quota.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::procfs::netns_of;
use crate::event::{Netns, Throttled};

/// Cgroups read for one namespace: a pod has a handful of containers.
const MAX_CGROUPS: usize = 16;

/// The CPU cgroups of all processes in a namespace, with their counters.
pub(super) fn of_namespace(netns: Netns) -> Vec<Throttled> {
    let folders: BTreeSet<PathBuf> = pids_in(netns).filter_map(folder).take(MAX_CGROUPS).collect();
    folders.into_iter().filter_map(|folder| read(&folder)).collect()
}

fn pids_in(netns: Netns) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(move |pid| netns_of(*pid) == Some(netns))
}

/// Where the counters of a process's cgroup are: version 2, or the `cpu` hierarchy of version 1.
fn folder(pid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let (v1, v2) = (own_path(&text, true), own_path(&text, false));
    let found = |mount: Option<&str>, own: Option<&str>| {
        let folder = Path::new(mount?).join(own?.trim_start_matches('/'));
        // The root of a hierarchy is never throttled.
        (own != Some("/") && folder.join("cpu.stat").exists()).then_some(folder)
    };
    found(mount_of(&mounts, true), v1).or_else(|| found(mount_of(&mounts, false), v2))
}

/// `4:cpu,cpuacct:/kubepods/…` or `0::/kubepods.slice/…`.
fn own_path(text: &str, v1: bool) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let fits = if v1 { controllers.split(',').any(|c| c == "cpu") } else { controllers.is_empty() };
        fits.then_some(path)
    })
}

fn mount_of(mounts: &str, v1: bool) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        let fits = if v1 { kind == "cgroup" && options.split(',').any(|o| o == "cpu") } else { kind == "cgroup2" };
        fits.then_some(path)
    })
}

fn read(folder: &Path) -> Option<Throttled> {
    let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    parse(&text, &folder.display().to_string())
}

/// `nr_throttled` in both versions; `throttled_usec` in the second, `throttled_time` in nanoseconds in the first.
fn parse(text: &str, cgroup: &str) -> Option<Throttled> {
    let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
    let micros = value("throttled_usec ").or_else(|| value("throttled_time ").map(|ns| ns / 1000));
    Some(Throttled { cgroup: cgroup.to_owned(), times: value("nr_throttled ")?, micros: micros? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_versions() {
        let v2 = "usage_usec 5\nnr_periods 9\nnr_throttled 7\nthrottled_usec 1500\n";
        let v1 = "nr_periods 9\nnr_throttled 7\nthrottled_time 1500000\n";
        let expected = Throttled { cgroup: "/c".into(), times: 7, micros: 1500 };
        assert_eq!(parse(v2, "/c").as_ref(), Some(&expected));
        assert_eq!(parse(v1, "/c"), Some(expected));
        assert_eq!(parse("usage_usec 5\n", "/c"), None);
    }

    #[test]
    fn the_cpu_hierarchy_goes_before_version_two_where_it_is_mounted() {
        let text = "9:name=systemd:/s\n2:cpu,cpuacct:/kubepods/pod1\n0::/other\n";
        assert_eq!((own_path(text, true), own_path(text, false)), (Some("/kubepods/pod1"), Some("/other")));
        let mounts =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_of(mounts, true), Some("/sys/fs/cgroup/cpu"));
        assert_eq!(mount_of(mounts, false), Some("/sys/fs/cgroup/unified"));
    }
}
