//! Reads what limits a container: the limits of processes, memory and processor time of its cgroups, and what its
//! processes wait for.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup::{container_of, pod_process};
use super::cgroups::below_the_root;
use super::namespaces::{Namespaces, SLOW_AGE};
use super::procfs::read_text;
use super::servers::states;
use super::throttle::{self, value};
use crate::cgroups::{Hierarchy, Mounts};
use tracer_model::event::{CgroupCounters, ContainerLimits, Netns};

/// Reads the limits of a container that has processes in this namespace; `None` if none was found.
pub fn read(netns: Netns, id: String, namespaces: &mut Namespaces) -> Option<ContainerLimits> {
    let mounts = Mounts::read().ok()?;
    let cgroups = |pid: &u32| Some((*pid, read_text(format!("/proc/{pid}/cgroup")).ok()?));
    let all = namespaces.pids(netns, SLOW_AGE).iter().filter_map(cgroups);
    let own: Vec<(u32, String)> = all.filter(|(_, text)| is_in(text, &id)).collect();
    let distinct = throttle::distinct(own.iter().cloned(), |_| true);
    let first = distinct.first()?;
    let cpu = throttle::with_parents(distinct.iter().filter_map(|text| throttle::folder(text, &mounts)));
    Some(ContainerLimits {
        throttled: cpu.iter().filter_map(|folder| throttle::read(folder)).collect(),
        counters: counters(first, &id, &mounts),
        serving: states(own.iter().map(|(pid, _)| *pid), None, &mounts),
        id,
    })
}

/// Whether the process with this `/proc/PID/cgroup` is in the container.
fn is_in(text: &str, id: &str) -> bool {
    pod_process(text).and_then(|it| it.container).or_else(|| container_of(text)).is_some_and(|it| it == id)
}

/// The counters of the container's cgroup, and of its pod's: a limit of processes may be set there (`podPidsLimit`).
fn counters(text: &str, id: &str, mounts: &Mounts) -> Vec<CgroupCounters> {
    let folder = |hierarchy| Some(container_folder(&below_the_root(text, hierarchy, mounts)?, id)?.to_owned());
    let folders = [Hierarchy::Unified, Hierarchy::Pids, Hierarchy::Memory].into_iter().filter_map(folder);
    let with_pod = |own: PathBuf| {
        let pod = own.parent().map(|pod| (pod.to_owned(), pids_of(pod)));
        let values = pids_of(&own).into_iter().chain(memory_of(&own)).collect();
        std::iter::once((own, values)).chain(pod)
    };
    let all = folders.flat_map(with_pod).filter(|(_, values): &(_, BTreeMap<_, _>)| !values.is_empty());
    all.map(|(folder, values)| CgroupCounters { cgroup: folder.display().to_string(), values }).collect()
}

/// The folder of the whole container: its processes may be in cgroups below it.
fn container_folder<'a>(folder: &'a Path, id: &str) -> Option<&'a Path> {
    let is_named = |folder: &&Path| folder.file_name().is_some_and(|name| name.to_string_lossy().contains(id));
    folder.ancestors().filter(is_named).last()
}

/// How often a process could not be made, how many there are, and how many may be.
///
/// On version 1, and before 6.11, the kernel counts in the cgroup of the process that forks (`pids_can_fork`). Since then
/// `pids.events` of version 2 counts what happened below, too, and `pids.events.local` in the cgroup with the limit.
fn pids_of(folder: &Path) -> BTreeMap<String, u64> {
    let events = count_in(folder, "pids.events.local", "max").or_else(|| count_in(folder, "pids.events", "max"));
    // `max` for no limit.
    let number = |file: &str| Some((file.to_owned(), fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()?));
    events.into_iter().chain(["pids.current", "pids.max"].into_iter().filter_map(number)).collect()
}

/// How many of its processes were killed since memory was used up: `memory.oom_control` in version 1.
fn memory_of(folder: &Path) -> BTreeMap<String, u64> {
    let count = |file| count_in(folder, file, "oom_kill");
    count("memory.events").or_else(|| count("memory.oom_control")).into_iter().collect()
}

/// A line of a file, by the names of both.
fn count_in(folder: &Path, file: &str, name: &str) -> Option<(String, u64)> {
    Some((format!("{file} {name}"), value(&fs::read_to_string(folder.join(file)).ok()?, name)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::Scratch;

    const ID: &str = "cd4a88148bc949c0c449662096047adfa27666add64545f2f3c6caa4f6facb30";
    const UID: &str = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";

    fn write(scratch: &Scratch, folder: &str, files: &[(&str, &str)]) {
        files.iter().for_each(|(file, text)| _ = scratch.file(Path::new(folder).join(file), text));
    }

    fn read_in(scratch: &Scratch, mountinfo: &str, text: &str) -> Vec<(String, Vec<(String, u64)>)> {
        let root = scratch.root().display().to_string();
        let found = counters(text, ID, &Mounts::of(&mountinfo.replace("ROOT", &root)));
        let relative = |it: CgroupCounters| (it.cgroup[root.len() + 1..].to_owned(), it.values.into_iter().collect());
        found.into_iter().map(relative).collect()
    }

    fn row(folder: String, values: &[(&str, u64)]) -> (String, Vec<(String, u64)>) {
        (folder, values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    }

    /// systemd in the container makes cgroups below the container's.
    #[test]
    fn the_counters_of_version_2_are_those_of_the_container_and_its_pod() {
        let scratch = Scratch::new();
        let (pod, own) = (format!("all/pod{UID}"), format!("all/pod{UID}/{ID}"));
        write(&scratch, &pod, &[("pids.events", "max 9\n"), ("pids.events.local", "max 4\n"), ("pids.max", "50\n")]);
        write(&scratch, &own, &[("pids.events", "max 0\n"), ("pids.max", "max\n"), ("pids.current", "7\n")]);
        write(&scratch, &own, &[("memory.events", "low 0\nhigh 0\nmax 8\noom 3\noom_kill 2\noom_group_kill 0\n")]);
        write(&scratch, &format!("{own}/init.scope"), &[("pids.events", "max 1\n")]);
        let text = format!("0::/pod{UID}/{ID}/init.scope\n");
        let found = read_in(&scratch, "41 31 0:38 / ROOT/all rw - cgroup2 cgroup2 rw\n", &text);
        let expected = [
            row(own, &[("memory.events oom_kill", 2), ("pids.current", 7), ("pids.events max", 0)]),
            row(pod, &[("pids.events.local max", 4), ("pids.max", 50)]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_counters_of_version_1_are_in_two_hierarchies() {
        let scratch = Scratch::new();
        let of = |hierarchy: &str| format!("{hierarchy}/kubepods/pod{UID}/{ID}");
        write(&scratch, &of("pids"), &[("pids.events", "max 3\n"), ("pids.max", "20\n"), ("pids.current", "19\n")]);
        write(&scratch, &of("memory"), &[("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")]);
        let mounts = "40 31 0:37 / ROOT/pids rw - cgroup cgroup rw,pids\n\
            41 31 0:38 / ROOT/memory rw - cgroup cgroup rw,memory\n";
        let text = format!("8:pids:/kubepods/pod{UID}/{ID}\n4:memory:/kubepods/pod{UID}/{ID}\n0::/\n");
        let pids = row(of("pids"), &[("pids.current", 19), ("pids.events max", 3), ("pids.max", 20)]);
        let expected = [pids, row(of("memory"), &[("memory.oom_control oom_kill", 5)])];
        assert_eq!(read_in(&scratch, mounts, &text), expected);
        assert!(is_in(&text, ID) && !is_in(&text, UID) && !is_in("0::/\n", ID));
        assert!(read_in(&scratch, mounts, "8:pids:/\n").is_empty(), "the root has no limits");
    }
}
