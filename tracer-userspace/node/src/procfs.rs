//! Processes of the node: which of them are probers, and in which network namespace they run.
//!
//! The node's namespace is the prober's, not that of process 1: the two differ in nested nodes (kind, k3d) and in
//! tests. tracer reads everything about the node through a prober's entry in `/proc`.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::cgroup::{self, PodProcess};
use super::enter::{NetnsError, in_netns};
use tracer_model::event::{Netns, is_kubelet_name};

/// A healthy node has fewer processes. tracer skips the rest and reports that.
pub(super) const MAX_PROCESSES: usize = 32_768;

/// A process that makes probe attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    pub pid: u32,
    pub comm: String,
    /// Network namespace; absent if it may not be read.
    pub netns: Option<Netns>,
}

/// The node's network namespace and the process it is read through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNetns {
    pub pid: u32,
    pub netns: Netns,
}

impl NodeNetns {
    pub fn net_file(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/net/{file}", self.pid))
    }

    /// Runs `task` inside the namespace.
    pub fn enter<T: Send>(&self, task: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        in_netns(Path::new(&format!("/proc/{}/ns/net", self.pid)), task)
    }
}

/// A process, as found by one scan of `/proc`.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    /// Its network namespace, where that can be read.
    pub netns: Option<Netns>,
    /// Its name, if it is one of the probers' names.
    pub prober: Option<String>,
    /// The pod that its cgroup names.
    pub pod: Option<PodProcess>,
}

/// Scans `/proc`: all processes, by pid, and a problem to report if some were skipped.
pub fn scan(names: &[String]) -> (Vec<Process>, Option<String>) {
    let mut small = SmallFile::default();
    let (pids, problem) = bounded(every_pid());
    (pids.into_iter().map(|pid| read_process(pid, names, &mut small)).collect(), problem)
}

fn read_process(pid: u32, names: &[String], small: &mut SmallFile) -> Process {
    let at = namespace_of(pid);
    Process {
        pid,
        // A process that has ended sends no more probes. It may stay as a zombie, which keeps its name.
        prober: prober_name(pid, names, small).filter(|_| at != Namespace::Gone),
        netns: at.read(),
        pod: cgroup::pod_process(&small.read(&format!("/proc/{pid}/cgroup"))),
    }
}

/// All pids, in the order of `/proc`.
pub(super) fn every_pid() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// These pids in order, and a problem to report if some were skipped.
fn bounded(mut pids: impl Iterator<Item = u32>) -> (Vec<u32>, Option<String>) {
    let mut first: Vec<u32> = pids.by_ref().take(MAX_PROCESSES).collect();
    first.sort_unstable();
    let problem = || format!("more than {MAX_PROCESSES} processes: the rest is left out, with its pods and namespaces");
    (first, pids.next().map(|_| problem()))
}

/// The name of a process, if it is one of these names.
fn prober_name(pid: u32, names: &[String], small: &mut SmallFile) -> Option<String> {
    let comm = small.read(&format!("/proc/{pid}/comm"));
    names.iter().find(|name| *name == comm.trim_end_matches('\n')).cloned()
}

/// The pod and container of a process.
pub(super) fn pod_of_process(pid: u32) -> Option<PodProcess> {
    cgroup::pod_process(&read_text(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The text of a file. Names of processes, cgroups and mounts may have any bytes: the kernel cuts a process's name after
/// 15, and so within a letter.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The counters in a file of `/proc/net/stat`: a line of names, then a line of hexadecimal numbers for each CPU.
pub fn of_each_cpu(text: &str) -> impl Iterator<Item = (&str, u64)> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let number = |word| u64::from_str_radix(word, 16).unwrap_or_default();
    lines.flat_map(move |line| names.clone().into_iter().zip(line.split_whitespace().map(number)))
}

/// Reads files of `/proc` into one buffer. Their size is not known before, and a node has thousands of them.
struct SmallFile([u8; 16 << 10]);

impl Default for SmallFile {
    fn default() -> Self {
        Self([0; 16 << 10])
    }
}

impl SmallFile {
    /// The text, or nothing if it cannot be read.
    fn read(&mut self, path: &str) -> Cow<'_, str> {
        let length = fs::File::open(path).and_then(|mut file| file.read(&mut self.0)).unwrap_or(0);
        String::from_utf8_lossy(&self.0[..length])
    }
}

/// Scans `/proc` for probers with these names.
pub fn find_probers(names: &[String]) -> Vec<Prober> {
    probers(&named(names))
}

/// The processes with these names. Of all others only the name is read.
pub fn named(names: &[String]) -> Vec<Process> {
    if names.is_empty() {
        return Vec::new();
    }
    let mut small = SmallFile::default();
    let (mut pids, _) = bounded(every_pid());
    pids.retain(|pid| prober_name(*pid, names, &mut small).is_some());
    pids.into_iter().map(|pid| read_process(pid, names, &mut small)).collect()
}

/// The probers among these processes; those in pods come last. A kubelet in a pod counts if [it can be the
/// node's](can_be_of_node) and no other kubelet runs outside of pods. A process with another given name always counts.
pub fn probers(processes: &[Process]) -> Vec<Prober> {
    probers_beside(processes, &own_cgroups())
}

/// The text of `/proc/self/cgroup`.
pub fn own_cgroups() -> String {
    read_text("/proc/self/cgroup").unwrap_or_default()
}

/// A process in a pod can only pretend to be the node's kubelet. The exception is a node that runs inside this pod: then
/// tracer (`own`: our cgroups) is in it, too.
pub fn can_be_of_node(process: &Process, own: &str) -> bool {
    process.pod.as_ref().is_none_or(|pod| cgroup::is_within(own, &pod.uid))
}

fn probers_beside(processes: &[Process], own: &str) -> Vec<Prober> {
    let can_be =
        |process: &&Process| !process.prober.as_deref().is_some_and(is_kubelet_name) || can_be_of_node(process, own);
    let to_prober = |process: &Process| {
        let comm = process.prober.clone()?;
        Some((process.pod.is_some(), Prober { pid: process.pid, comm, netns: process.netns }))
    };
    let (in_pods, others): (Vec<_>, Vec<_>) =
        processes.iter().filter(can_be).filter_map(to_prober).partition(|(in_pod, _)| *in_pod);
    let is_kubelet = |(_, prober): &(bool, Prober)| is_kubelet_name(&prober.comm);
    let has_kubelet = others.iter().any(is_kubelet);
    let in_pods = in_pods.into_iter().filter(|it| !(has_kubelet && is_kubelet(it)));
    others.into_iter().chain(in_pods.collect::<Vec<_>>()).map(|(_, prober)| prober).collect()
}

/// Where a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    OutsideOfPods,
    /// In the pod of this tracer: a node may run inside of it.
    OwnPod,
    OtherPod,
}

/// Where a process runs; `None` if it has ended, and its cgroup does not tell. If only its first thread has ended, another
/// one tells.
pub fn place_of(pid: u32) -> Option<Place> {
    let tasks = || fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    place_at(format!("/proc/{pid}").as_ref()).or_else(|| tasks().find_map(|task| place_at(&task.path())))
}

fn place_at(task: &Path) -> Option<Place> {
    let pod = cgroup::pod_process(&read_text(task.join("cgroup")).unwrap_or_default());
    match pod {
        Some(pod) if cgroup::is_within(&own_cgroups(), &pod.uid) => Some(Place::OwnPod),
        Some(_) => Some(Place::OtherPod),
        // A task that exits is in the root of each cgroup v1 (kernel/cgroup/cgroup.c, proc_cgroup_show).
        None => (namespace_at(task) != Namespace::Gone).then_some(Place::OutsideOfPods),
    }
}

/// Whether `/proc` numbers processes as the kernel does, and its events: tracer is in the initial PID namespace
/// (`PROC_PID_INIT_INO`, include/linux/proc_ns.h). A node that is a container (kind, k3d) has a namespace of its own.
pub fn has_kernel_numbers() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

pub fn is_alive(pid: u32) -> bool {
    fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

/// Whether root runs the process, as it runs the kubelet. The owner of its folder would not show that: it is root for any
/// process that makes itself undumpable.
pub fn is_root(pid: u32) -> bool {
    let mut small = SmallFile::default();
    let status = small.read(&format!("/proc/{pid}/status"));
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // Real, effective, saved, of the file system. Any user can run a program that is set-user-ID root.
    ids.is_some_and(|ids| ids.split_whitespace().take(2).eq(["0", "0"]))
}

/// The namespace of the node: a prober's namespace, preferably that of a prober in our own namespace. Without a prober
/// it is our own.
pub fn node_netns(probers: &[Prober]) -> Option<NodeNetns> {
    let own_pid = std::process::id();
    let own = netns_of(own_pid);
    let readable = || probers.iter().filter_map(|prober| Some(NodeNetns { pid: prober.pid, netns: prober.netns? }));
    let here = || readable().filter(|node| Some(node.netns) == own);
    here()
        .find(|node| is_root(node.pid))
        .or_else(|| here().next())
        .or_else(|| readable().next())
        .or_else(|| own.map(|netns| NodeNetns { pid: own_pid, netns }))
}

pub fn netns_of(pid: u32) -> Option<Netns> {
    namespace_of(pid).read()
}

/// The network namespace of a process, if it could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Namespace {
    At(Netns),
    /// We have no permission to read it.
    Hidden,
    /// The process has ended.
    Gone,
}

impl Namespace {
    const fn read(self) -> Option<Netns> {
        match self {
            Self::At(netns) => Some(netns),
            Self::Hidden | Self::Gone => None,
        }
    }
}

pub(super) fn namespace_of(pid: u32) -> Namespace {
    namespace_at(format!("/proc/{pid}").as_ref())
}

fn namespace_at(task: &Path) -> Namespace {
    match fs::read_link(task.join("ns/net")) {
        Ok(target) => netns_named(&target).map_or(Namespace::Hidden, Namespace::At),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Namespace::Hidden,
        Err(_) => Namespace::Gone,
    }
}

/// `net:[INUM]`
fn netns_named(target: &Path) -> Option<Netns> {
    target.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok().map(Netns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_no_prober() {
        let mut child = std::process::Command::new("true").spawn().expect("true");
        // WNOWAIT waits for the end and leaves the zombie, which keeps its name.
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::wait::waitid(nix::sys::wait::Id::Pid(pid), flags).expect("its end");
        let found = probers(&[read_process(child.id(), &["true".to_owned()], &mut SmallFile::default())]);
        assert!(found.is_empty(), "{found:?}");
        child.wait().expect("its end");
    }

    /// The process goes on without its first thread, which stays as a zombie.
    #[test]
    fn a_process_without_its_first_thread_is_where_the_others_are() {
        // SAFETY: the child uses nothing but a new thread, and system calls.
        let child = match unsafe { nix::unistd::fork() }.expect("a child") {
            nix::unistd::ForkResult::Parent { child } => child,
            nix::unistd::ForkResult::Child => {
                std::thread::spawn(|| {
                    loop {
                        nix::unistd::pause()
                    }
                });
                // SAFETY: it ends this thread only, and never returns.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
                unreachable!("the thread has ended");
            }
        };
        let pid = child.as_raw().cast_unsigned();
        tracer_testing::soon("its end", || (namespace_of(pid) == Namespace::Gone).then_some(()));
        let place = place_of(pid);
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).expect("its end");
        nix::sys::wait::waitpid(child, None).expect("its end");
        assert_eq!((place, place_of(pid)), (Some(Place::OutsideOfPods), None));
    }

    const UID: &str = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";

    #[test]
    fn a_kubelet_in_a_pod_is_skipped_beside_one_outside_but_other_given_names_count() {
        let process = |pid, name: &str, in_pod: bool| Process {
            pid,
            netns: None,
            prober: Some(name.into()),
            pod: in_pod.then(|| PodProcess { uid: UID.into(), container: None }),
        };
        let beside = |own: &str, all: &[Process]| -> Vec<u32> {
            probers_beside(all, own).iter().map(|prober| prober.pid).collect()
        };
        let found = |all: &[Process]| beside(&format!("0::/kubepods/pod{UID}/tracer\n"), all);
        let (fake, agent) = (|| process(7, "kubelet", true), || process(8, "my-agent", true));
        assert_eq!(found(&[fake(), agent(), process(9, "k3s", false)]), [9, 8]);
        assert_eq!(found(&[fake(), agent(), process(9, "curl", false)]), [9, 7, 8], "a node inside a pod");
        assert_eq!(found(&[fake(), agent()]), [7, 8]);
        assert_eq!(beside("0::/system.slice/tracer.service\n", &[fake(), agent()]), [8], "the kubelet restarts");
    }

    #[test]
    fn processes_beyond_the_limit_are_reported() {
        let most = MAX_PROCESSES as u32;
        assert_eq!(bounded([9, 7].into_iter()), (vec![7, 9], None));
        assert_eq!(bounded(0..most), ((0..most).collect(), None));
        let (pids, problem) = bounded(0..=most);
        assert_eq!(pids.len(), MAX_PROCESSES);
        assert!(problem.is_some_and(|problem| problem.starts_with("more than 32768 processes")));
    }

    #[test]
    fn this_process_is_found_by_its_name() {
        let comm = fs::read_to_string("/proc/self/comm").expect("comm");
        let name = comm.trim_end().to_owned();
        let probers = find_probers(std::slice::from_ref(&name));
        let own = probers.iter().find(|prober| prober.pid == std::process::id()).expect("ourselves");
        assert_eq!(own.comm, name);
        assert!(own.netns.is_some());
    }

    #[test]
    fn root_is_known_by_its_user() {
        assert_eq!(is_root(std::process::id()), nix::unistd::geteuid().is_root());
        assert!(!is_root(u32::MAX));
    }

    #[test]
    fn without_a_prober_the_node_is_where_we_are() {
        let node = node_netns(&[]).expect("own namespace");
        assert_eq!(node.pid, std::process::id());
        assert_eq!(Some(node.netns), netns_of(std::process::id()));
    }

    #[test]
    fn a_prober_in_our_namespace_is_preferred() {
        let own = netns_of(std::process::id());
        let at = |pid, netns| Prober { pid, comm: "kubelet".into(), netns };
        let node = node_netns(&[at(7, Some(Netns(1))), at(9, own), at(11, None)]).expect("node");
        assert_eq!(node.pid, 9);
        let nested = node_netns(&[at(7, Some(Netns(1)))]).expect("node");
        assert_eq!(nested, NodeNetns { pid: 7, netns: Netns(1) });
    }
}
