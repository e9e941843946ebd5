//! How often the kernel throttled the processes of a network namespace because their CPU quota was used up.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroups::below_the_root;
use super::namespaces::Namespaces;
use super::procfs::{netns_of, read_text};
use crate::cgroups::{Hierarchy, Mounts};
use tracer_model::event::{Netns, Throttled};
use tracer_model::recent::Recent;

/// How many cgroups of one namespace are read: a pod has a few containers.
const MAX_CGROUPS: usize = 16;

/// For how many namespaces the cgroups are kept.
const MAX_KEPT: usize = 256;
/// How long a namespace's cgroups are kept. A container that starts later is missing, which does no harm: verdicts
/// compare two readings of one cgroup.
const KEPT: Duration = Duration::from_secs(3);
/// How old the list of processes may be, and how long an empty result is kept: the namespace may be new.
const MAX_AGE: Duration = Duration::from_millis(150);

/// The cgroups of namespaces with recent queries. The cache is needed because a pod may have thousands of processes,
/// and queries for each of its probes.
#[derive(Debug, Default)]
pub struct Throttling {
    /// Where cgroups are mounted; read at the first use.
    mounts: Option<Mounts>,
    folders: Recent<Netns, (Instant, Vec<PathBuf>), MAX_KEPT>,
}

impl Throttling {
    pub(super) fn mounts(&mut self) -> &Mounts {
        self.mounts.get_or_insert_with(|| Mounts::read().unwrap_or_default())
    }

    /// The CPU cgroups of all processes in a namespace, with their counters.
    pub(super) fn of(&mut self, netns: Netns, namespaces: &mut Namespaces) -> Vec<Throttled> {
        let is_old = |(since, folders): &(Instant, Vec<PathBuf>)| {
            since.elapsed() > if folders.is_empty() { MAX_AGE } else { KEPT }
        };
        if self.folders.get(&netns).is_none_or(is_old) {
            let folders = self.folders_in(netns, namespaces.pids(netns, MAX_AGE));
            self.folders.insert(netns, (Instant::now(), folders));
        }
        self.folders.get(&netns).into_iter().flat_map(|(_, folders)| folders).filter_map(|it| read(it)).collect()
    }

    fn folders_in(&mut self, netns: Netns, pids: &[u32]) -> Vec<PathBuf> {
        let mounts = self.mounts();
        let text = |pid: &u32| Some((*pid, read_text(format!("/proc/{pid}/cgroup")).ok()?));
        // The kernel may have reused a pid for a process in another namespace.
        let cgroups = distinct(pids.iter().filter_map(text), |pid| netns_of(pid) == Some(netns));
        with_parents(cgroups.iter().filter_map(|text| folder(text, mounts)))
    }
}

/// The distinct cgroups, [`MAX_CGROUPS`] at most. A container may have any number of processes.
pub(super) fn distinct(
    cgroups: impl Iterator<Item = (u32, String)>,
    is_here: impl Fn(u32) -> bool,
) -> BTreeSet<String> {
    let mut distinct = BTreeSet::new();
    for (pid, cgroup) in cgroups {
        if !distinct.contains(&cgroup) && is_here(pid) {
            distinct.insert(cgroup);
        }
        if distinct.len() == MAX_CGROUPS {
            break;
        }
    }
    distinct
}

/// The folder with the counters of a cgroup: in the `cpu` hierarchy of version 1, or in version 2.
pub(super) fn folder(text: &str, mounts: &Mounts) -> Option<PathBuf> {
    [Hierarchy::Cpu, Hierarchy::Unified]
        .into_iter()
        .find_map(|hierarchy| below_the_root(text, hierarchy, mounts).filter(|folder| folder.join("cpu.stat").exists()))
}

/// These folders and those above them, each once: the limit of a pod or a service holds for its containers, too, and
/// only its own cgroup counts how often it throttled.
pub(super) fn with_parents(folders: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let all = |folder: PathBuf| folder.ancestors().map(Path::to_owned).collect::<Vec<_>>();
    let counts = |folder: &PathBuf| folder.join("cpu.stat").exists();
    let all: BTreeSet<_> = folders.flat_map(|folder| all(folder).into_iter().take_while(counts)).collect();
    all.into_iter().collect()
}

pub(super) fn read(folder: &Path) -> Option<Throttled> {
    let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
    Some(Throttled { period_us: period(folder), ..parse(&text, &folder.display().to_string())? })
}

/// The length of a period: the second value of `cpu.max`, or a file of its own in version 1.
fn period(folder: &Path) -> Option<u64> {
    let last = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.split_whitespace().last()?.parse().ok()
    };
    last("cpu.max").or_else(|| last("cpu.cfs_period_us"))
}

/// `nr_throttled` in both versions; `throttled_usec` in the second, `throttled_time` in nanoseconds in the first.
pub fn parse(text: &str, cgroup: &str) -> Option<Throttled> {
    let micros = value(text, "throttled_usec").or_else(|| value(text, "throttled_time").map(|ns| ns / 1000));
    Some(Throttled { cgroup: cgroup.to_owned(), times: value(text, "nr_throttled")?, micros: micros?, period_us: None })
}

/// The value in the line `name 7` of a cgroup's file.
pub(super) fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::Scratch;

    #[test]
    fn counters_of_both_versions() {
        let v2 = "usage_usec 5\nnr_periods 9\nnr_throttled 7\nthrottled_usec 1500\n";
        let v1 = "nr_periods 9\nnr_throttled 7\nthrottled_time 1500000\n";
        let expected = Throttled { cgroup: "/c".into(), times: 7, micros: 1500, period_us: None };
        assert_eq!(parse(v2, "/c").as_ref(), Some(&expected));
        assert_eq!(parse(v1, "/c"), Some(expected));
        assert_eq!(parse("usage_usec 5\n", "/c"), None);
    }

    #[test]
    fn the_length_of_a_period_of_both_versions() {
        let scratch = Scratch::new();
        for (folder, file, text) in [("v2", "cpu.max", "max 50000\n"), ("v1", "cpu.cfs_period_us", "20000\n")] {
            scratch.file(Path::new(folder).join("cpu.stat"), "nr_throttled 7\nthrottled_usec 9\n");
            scratch.file(Path::new(folder).join(file), text);
        }
        let periods = ["v2", "v1"].map(|it| read(&scratch.path(it)).and_then(|it| it.period_us));
        assert_eq!(periods, [Some(50_000), Some(20_000)]);
    }

    /// The last search may be older than the namespace's first process.
    #[test]
    fn a_namespace_without_processes_is_read_again_soon() {
        let own = netns_of(std::process::id()).expect("own namespace");
        let read_again = |folders: Vec<PathBuf>| {
            let mut throttling = Throttling::default();
            let before = Instant::now().checked_sub(MAX_AGE * 2).expect("the machine runs longer");
            throttling.folders.insert(own, (before, folders));
            throttling.of(own, &mut Namespaces::default());
            throttling.folders.get(&own).is_some_and(|(since, _)| *since > before)
        };
        assert!(read_again(Vec::new()) && !read_again(vec![PathBuf::from("/no-cgroup")]));
    }

    #[test]
    fn processes_of_one_cgroup_leave_room_for_the_others() {
        let cgroups = (0..100).map(|_| "0::/a\n".to_owned()).chain((0..100).map(|it| format!("0::/b{it}\n")));
        let found = distinct((0..).zip(cgroups), |_| true);
        assert!(found.len() == MAX_CGROUPS && found.contains("0::/a\n") && found.contains("0::/b14\n"));
        let moved = [(1, "0::/a\n".to_owned()), (2, "0::/b\n".to_owned())].into_iter();
        assert_eq!(distinct(moved, |pid| pid == 2), ["0::/b\n".to_owned()].into(), "the pid was reused");
    }

    /// A nested cgroup of version 2 may lack the CPU controller: its `cpu.stat` then has no such counter.
    #[test]
    fn a_limit_above_the_container_is_read_once() {
        let scratch = Scratch::new();
        for (folder, stat) in
            [("pod", "nr_throttled 7\nthrottled_usec 9\n"), ("pod/a", "usage_usec 1\n"), ("pod/b", "")]
        {
            scratch.file(Path::new(folder).join("cpu.stat"), stat);
        }
        let folders = with_parents(["pod/a", "pod/b"].map(|it| scratch.path(it)).into_iter());
        assert_eq!(folders, ["pod", "pod/a", "pod/b"].map(|it| scratch.path(it)));
        let read: Vec<_> = folders.iter().filter_map(|it| read(it)).collect();
        assert_eq!(read.iter().map(|it| it.times).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn the_cpu_hierarchy_goes_before_version_two_where_it_has_the_counters() {
        let scratch = Scratch::new();
        for folder in ["cpu/pod", "all/pod", "all/other"] {
            scratch.file(Path::new(folder).join("cpu.stat"), "nr_throttled 1\n");
        }
        let mounts = Mounts::of(&format!(
            "40 31 0:37 / {0}/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 /../.. {0}/all rw - cgroup2 cgroup2 rw\n",
            scratch.root().display()
        ));
        let found =
            |text: &str| folder(text, &mounts).map(|it| it.strip_prefix(scratch.root()).expect("below").to_owned());
        assert_eq!(found("4:cpu,cpuacct:/pod\n0::/../../other\n"), Some("cpu/pod".into()));
        assert_eq!(found("4:cpu,cpuacct:/gone\n0::/../../other\n"), Some("all/other".into()));
        assert_eq!(found("0::/../../pod\n"), Some("all/pod".into()), "as in a container");
        assert_eq!((found("4:cpu:/\n"), found("0::/../../gone\n")), (None, None));
    }
}
