//! Which processes serve a target, and what keeps them from answering: whether they are stopped or frozen, and what
//! they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::procfs::{netns_of, read_text};
use super::throttle;
use crate::cgroups::{Hierarchy, Mounts, below_the_root};
use tracer_model::event::{Netns, Pressure, ServerProcess, ServerTasks, Serving};

/// How many server processes are reported: a server has a few workers.
const MAX_SERVERS: usize = 16;
/// How many threads of them are read in all. A pod can have any number.
const MAX_THREADS: usize = 1024;
/// How many file descriptors are read to find one socket among all processes.
const MAX_FDS_OF_ALL: usize = 1 << 16;

/// How many processes are searched for sockets, and how many file descriptors they may have in all.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    processes: usize,
    fds: usize,
}

/// A pod can have any number.
pub const OF_POD: Limits = Limits { processes: 256, fds: 4096 };
/// The node's own namespace has those of the node and of pods with hostNetwork.
pub const OF_NODE: Limits = Limits { processes: 4096, fds: MAX_FDS_OF_ALL };

#[derive(Debug, Default)]
pub struct Holders {
    /// The inodes of the sockets that each process holds, by pid.
    pub held: BTreeMap<u32, BTreeSet<u64>>,
    /// Some file descriptors were skipped, or cannot be read.
    pub incomplete: bool,
}

/// Which of these processes, all in one namespace, hold which of these sockets.
pub fn holders(sockets: &BTreeSet<u64>, pids: &[u32], netns: Netns, most: &Limits) -> Holders {
    if sockets.is_empty() {
        return Holders::default();
    }
    let mut found = Holders { incomplete: pids.len() > most.processes, ..Holders::default() };
    let mut left = most.fds;
    // The kernel may have reused a pid for a process in another namespace.
    for pid in pids.iter().take(most.processes).filter(|pid| netns_of(**pid) == Some(netns)) {
        let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            found.incomplete = true;
            continue;
        };
        for fd in fds.flatten() {
            if left == 0 {
                found.incomplete = true;
                return found;
            }
            left -= 1;
            if let Some(inode) = socket_of(&fd.path()).filter(|inode| sockets.contains(inode)) {
                found.held.entry(*pid).or_default().insert(inode);
            }
        }
    }
    found
}

/// The first of these processes that holds the socket with this inode.
pub(super) fn holder_of(socket: u64, pids: &[u32]) -> Option<u32> {
    let fds = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all = pids.iter().flat_map(|pid| fds(pid).map(|fd| (*pid, fd.path()))).take(MAX_FDS_OF_ALL);
    all.find(|(_, fd)| socket_of(fd) == Some(socket)).map(|(pid, _)| pid)
}

/// `socket:[123]`
fn socket_of(fd: &Path) -> Option<u64> {
    fs::read_link(fd).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The state of these processes, at most [`MAX_SERVERS`] of them, and the pressure in their cgroups and on the node.
/// `acceptor` is one of them: the one that has accepted the connection.
pub fn states(pids: impl Iterator<Item = u32>, acceptor: Option<u32>, mounts: &Mounts) -> Serving {
    let mut pids = acceptor.into_iter().chain(pids.filter(|pid| Some(*pid) != acceptor));
    let (mut folders, mut threads) = (BTreeSet::new(), MAX_THREADS);
    let processes = pids.by_ref().take(MAX_SERVERS).filter_map(|pid| {
        let cgroups = read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        folders.extend(below_the_root(&cgroups, Hierarchy::Unified, mounts));
        state(pid, &cgroups, mounts, &mut threads)
    });
    let mut processes: Vec<_> = processes.collect();
    processes.sort_by_key(|it: &ServerProcess| it.pid);
    let own = folders.iter().filter_map(|folder| pressure(folder, ".pressure", &folder.display().to_string()));
    let node = pressure(Path::new("/proc/pressure"), "", "node").map(|node| Pressure {
        steal_us: fs::read_to_string("/proc/stat").ok().and_then(|text| steal_of(&text)),
        ..node
    });
    let pressure = own.chain(node).collect();
    Serving { processes, pressure, incomplete: pids.next().is_some(), ..Serving::default() }
}

fn state(pid: u32, cgroups: &str, mounts: &Mounts, threads: &mut usize) -> Option<ServerProcess> {
    let (frozen, frozen_above) = frozen(cgroups, mounts).unzip();
    let cpu_cgroup = throttle::folder(cgroups, mounts).map(|folder| folder.display().to_string());
    let (comm, tasks, frozen_above) = (comm(pid)?, tasks(pid, threads), frozen_above.flatten());
    let core_dumping = read_text(format!("/proc/{pid}/status")).is_ok_and(|text| is_core_dumping(&text));
    Some(ServerProcess { pid, comm, tasks, frozen, frozen_above, cpu_cgroup, core_dumping })
}

/// By the text of `/proc/PID/status`. Meanwhile the process keeps its sockets (`coredump_task_exit`, kernel/exit.c).
fn is_core_dumping(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("CoreDumping:").is_some_and(|it| it.trim() == "1"))
}

pub(super) fn comm(pid: u32) -> Option<String> {
    Some(read_text(format!("/proc/{pid}/comm")).ok()?.trim_end_matches('\n').to_owned())
}

/// The threads of a process, `left` of them at most. Subtracts the number read from `left`.
fn tasks(pid: u32, left: &mut usize) -> ServerTasks {
    let mut all = ServerTasks { ran_ns: Some(0), waited_ns: Some(0), ..ServerTasks::default() };
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        if *left == 0 {
            all.incomplete = true;
            break;
        }
        *left -= 1;
        let read = |file: &str| read_text(thread.path().join(file)).unwrap_or_default();
        let Some(state) = state_of(&read("stat")) else { continue };
        all.count += 1;
        match state {
            'R' => all.runnable += 1,
            'T' => all.stopped += 1,
            't' => all.traced += 1,
            'D' => {
                all.blocked += 1;
                let place = read("wchan");
                all.blocked_in = all.blocked_in.take().or((!place.is_empty() && place != "0").then_some(place));
            }
            _ => {}
        }
        let (ran, waited) = times_of(&read("schedstat")).unzip();
        all.ran_ns = all.ran_ns.zip(ran).map(|(sum, of)| sum.saturating_add(of));
        all.waited_ns = all.waited_ns.zip(waited).map(|(sum, of)| sum.saturating_add(of));
    }
    // A process that listens has run, so 0 means that the kernel does not count (`sched_info_on`,
    // kernel/sched/stats.h).
    if all.incomplete || all.ran_ns == Some(0) {
        (all.ran_ns, all.waited_ns) = (None, None);
    }
    all
}

/// Parses `7 (a name) S 1 …`; the name may have brackets and spaces.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Time on a processor, time in a run queue (`proc_pid_schedstat`, fs/proc/base.c).
fn times_of(schedstat: &str) -> Option<(u64, u64)> {
    let mut fields = schedstat.split_whitespace().map_while(|field| field.parse().ok());
    fields.next().zip(fields.next())
}

/// The file that says that the cgroup is frozen, and the cgroup above that was frozen. Both files also show when a
/// parent cgroup is frozen; another file of each cgroup says whether it is so itself.
fn frozen(cgroups: &str, mounts: &Mounts) -> Option<(String, Option<String>)> {
    let file_with = |hierarchy, file: &str, line: &str, itself: &str| {
        let folder = below_the_root(cgroups, hierarchy, mounts)?;
        let text = fs::read_to_string(folder.join(file)).ok()?;
        let is_itself = |it: &&Path| fs::read_to_string(it.join(itself)).is_ok_and(|text| text.trim_end() == "1");
        let above = || folder.ancestors().find(is_itself).filter(|it| *it != folder);
        let shown = |path: &Path| path.display().to_string();
        text.lines().any(|it| it == line).then(|| (shown(&folder.join(file)), above().map(shown)))
    };
    file_with(Hierarchy::Unified, "cgroup.events", "frozen 1", "cgroup.freeze")
        .or_else(|| file_with(Hierarchy::Freezer, "freezer.state", "FROZEN", "freezer.self_freezing"))
}

/// The files are `cpu.pressure` of a cgroup, and `cpu` of the node.
fn pressure(folder: &Path, suffix: &str, of: &str) -> Option<Pressure> {
    let read = |resource: &str| fs::read_to_string(folder.join(format!("{resource}{suffix}"))).ok();
    let [cpu, io, memory] = ["cpu", "io", "memory"].map(read);
    if cpu.is_none() && io.is_none() && memory.is_none() {
        return None;
    }
    let total = |text: &Option<String>, of: &str| total_of(text.as_deref()?, of);
    Some(Pressure {
        of: of.to_owned(),
        cpu_us: total(&cpu, "some"),
        cpu_full_us: total(&cpu, "full"),
        io_us: total(&io, "some"),
        io_full_us: total(&io, "full"),
        memory_us: total(&memory, "some"),
        memory_full_us: total(&memory, "full"),
        memory_events: events_of(&fs::read_to_string(folder.join("memory.events")).unwrap_or_default()),
        steal_us: None,
    })
}

/// The events that keep tasks from running: the limits `memory.high` and `memory.max` were reached, a task was killed.
fn events_of(text: &str) -> BTreeMap<String, u64> {
    const EVENTS: [&str; 3] = ["high", "max", "oom_kill"];
    EVENTS.into_iter().filter_map(|name| Some((name.to_owned(), throttle::value(text, name)?))).collect()
}

/// The time that the hypervisor took, from the text of `/proc/stat`: clock ticks of all processors, `USER_HZ` of which
/// are a second.
fn steal_of(text: &str) -> Option<u64> {
    const TICK_US: u64 = 10_000;
    let ticks: u64 = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()?;
    let processors = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count() as u64;
    ticks.saturating_mul(TICK_US).checked_div(processors)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`: microseconds in which tasks waited.
fn total_of(text: &str, of: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(of))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;
    use tracer_testing::Scratch;

    #[test]
    fn the_holder_of_a_socket_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let inode = socket_of(Path::new(&format!("/proc/self/fd/{}", listener.as_raw_fd()))).expect("a socket");
        let own = std::process::id();
        let netns = netns_of(own).expect("own namespace");
        let found = holders(&[inode, 1].into(), &[own], netns, &OF_POD);
        assert_eq!(found.held, [(own, [inode].into())].into());
        let elsewhere = holders(&[inode].into(), &[own], Netns(1), &OF_POD).held;
        assert!(elsewhere.is_empty(), "the pid was reused in another namespace");
        let many: Vec<u32> = (0..=OF_POD.processes as u32).map(|it| u32::MAX - it).collect();
        assert!(holders(&[inode].into(), &many, netns, &OF_POD).incomplete);
    }

    #[test]
    fn a_process_that_writes_its_core_dump_is_known() {
        let text = |value: &str| format!("Name:\tapp\nCoreDumping:\t{value}\nTHP_enabled:\t1\n");
        assert!(is_core_dumping(&text("1")) && !is_core_dumping(&text("0")));
        assert!(!is_core_dumping("Name:\tapp\nTHP_enabled:\t1\n"), "before 4.15");
    }

    #[test]
    fn our_own_threads_are_read() {
        let mut left = MAX_THREADS;
        let read = tasks(std::process::id(), &mut left);
        assert!(read.count > 0 && read.runnable > 0 && read.stopped == 0 && !read.incomplete, "{read:?}");
        assert!(left < MAX_THREADS);
    }

    /// The kernel cuts the name within its eighth letter.
    #[test]
    fn a_process_with_a_name_that_is_no_text_is_read() {
        let scratch = Scratch::new();
        let program = scratch.path("приложение");
        fs::copy("/bin/sleep", &program).expect("a program");
        let mut child = std::process::Command::new(program).arg("60").spawn().expect("a process");
        let read = (comm(child.id()), tasks(child.id(), &mut { MAX_THREADS }).count);
        child.kill().and_then(|()| child.wait()).expect("its end");
        assert_eq!(read, (Some("приложе\u{fffd}".to_owned()), 1));
    }

    #[test]
    fn skipped_threads_and_processes_make_the_result_incomplete() {
        let read = tasks(std::process::id(), &mut 0);
        assert!(read.incomplete && read.ran_ns.is_none() && read.waited_ns.is_none(), "{read:?}");
        let incomplete = |count| {
            let pids = std::iter::repeat_n(std::process::id(), count);
            let read = states(pids, None, &Mounts::of(""));
            (read.processes.len(), read.incomplete)
        };
        assert_eq!(incomplete(MAX_SERVERS), (MAX_SERVERS, false));
        assert_eq!(incomplete(MAX_SERVERS + 1), (MAX_SERVERS, true));
        let (own, gone) = (std::process::id(), (0..20).map(|it| u32::MAX - it));
        let read = states(gone.chain([own]), Some(own), &Mounts::of(""));
        assert!(read.incomplete && read.processes.iter().map(|it| it.pid).eq([own]), "the one that has accepted");
    }

    #[test]
    fn states_and_totals_are_read() {
        assert_eq!(state_of("7 (a) b (c) T 1 2"), Some('T'));
        assert_eq!((state_of(""), times_of("5 7 9"), times_of(""), times_of("5")), (None, Some((5, 7)), None, None));
        let text =
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        assert_eq!(["some", "full"].map(|of| total_of(text, of)), [Some(1234), Some(99)]);
        assert_eq!(total_of("some avg10=0.00 total=9\n", "full"), None);
        let events = events_of("low 0\nhigh 4\nmax 8\noom 3\noom_kill 2\noom_group_kill 0\n");
        assert_eq!(events.into_values().collect::<Vec<_>>(), [4, 8, 2]);
        let stat = "cpu  1 2 3 4 5 6 7 50 0 0\ncpu0 0 1 1 2 2 3 3 20 0 0\ncpu1 1 1 2 2 3 3 4 30 0 0\nintr 9\n";
        assert_eq!((steal_of(stat), steal_of("")), (Some(250_000), None));
    }

    #[test]
    fn a_frozen_cgroup_of_either_version_is_found() {
        let scratch = Scratch::new();
        for (folder, file, text) in [
            ("all/pod", "cgroup.events", "populated 1\nfrozen 1\n"),
            ("all/other", "cgroup.events", "populated 1\nfrozen 0\n"),
            ("freezer/pod", "freezer.state", "FROZEN\n"),
            ("freezer/other", "freezer.state", "FREEZING\n"),
            ("all/pod", "cgroup.freeze", "1\n"),
            ("all", "cgroup.freeze", "1\n"),
            ("freezer/pod", "freezer.self_freezing", "1\n"),
            ("all/slice/pod/kid", "cgroup.events", "frozen 1\n"),
            ("all/slice/pod/kid", "cgroup.freeze", "0\n"),
            ("all/slice", "cgroup.freeze", "1\n"),
            ("freezer/slice/pod", "freezer.state", "FROZEN\n"),
            ("freezer/slice", "freezer.self_freezing", "1\n"),
        ] {
            scratch.file(Path::new(folder).join(file), text);
        }
        let mounts = Mounts::of(&format!(
            "40 31 0:37 / {0}/freezer rw - cgroup cgroup rw,freezer\n41 31 0:38 / {0}/all rw - cgroup2 cgroup2 rw\n",
            scratch.root().display()
        ));
        let found = |text: &str| {
            frozen(text, &mounts).map(|(file, above)| {
                assert_eq!(above, None, "its own cgroup is frozen");
                file.ends_with("pod/cgroup.events")
            })
        };
        assert_eq!(found("6:freezer:/other\n0::/pod\n"), Some(true));
        assert_eq!(found("6:freezer:/pod\n0::/other\n"), Some(false), "version 1");
        assert_eq!((found("6:freezer:/other\n0::/other\n"), found("0::/\n"), found("0::/gone\n")), (None, None, None));
        for (process, above) in [("0::/slice/pod/kid\n", "all/slice"), ("6:freezer:/slice/pod\n", "freezer/slice")] {
            let found = frozen(process, &mounts).and_then(|(_, above)| above);
            assert_eq!(found, Some(scratch.path(above).display().to_string()), "a cgroup above is frozen");
        }
    }
}
