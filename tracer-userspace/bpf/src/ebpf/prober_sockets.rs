//! Watches the probers' connections with a program on their own cgroups, instead of hooks that run for every connection of the
//! node.
//!
//! This works as long as each prober is in a cgroup below the root. If one is not, tracer attaches the hooks of the node instead.

use std::collections::BTreeSet;
use std::{fs, io};

use aya::Ebpf;
use tracer_common::names::Hook;
use tracer_node::procfs::{find_probers, is_alive};

use super::{
    attach::Walk,
    cgroup::{self, Attached, IN_ROOT},
    choice::NO_PROBER,
    program::Link,
};

/// Hooks that only this program needs.
const COMPANIONS: [Hook; 4] = [Hook::InetCskListen, Hook::PortUse, Hook::TaskRename, Hook::CgroupAttachTask];

/// The cgroups that have the program.
#[derive(Debug, Default)]
pub(super) struct ProberSockets {
    cgroups: Attached<Link>,
    /// Probers that could not be watched yet: a process may be moved into its cgroup just after its start.
    unwatched: BTreeSet<u32>,
}

impl ProberSockets {
    /// Attaches to the cgroups of the running probers with these names.
    pub(super) fn start(ebpf: &mut Ebpf, walk: &mut Walk, names: &[String]) -> io::Result<Self> {
        let mut sockets = Self::default();
        find_probers(names).iter().try_for_each(|prober| sockets.watch(ebpf, walk, prober.pid))?;
        // A prober may have exited meanwhile, and its cgroup has no program.
        walk.is_attached(Hook::SockOps).then_some(sockets).ok_or_else(|| io::Error::other(NO_PROBER))
    }

    /// Attaches to the cgroups of these processes.
    pub(super) fn watch_all(&mut self, ebpf: &mut Ebpf, walk: &mut Walk, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            if self.watch(ebpf, walk, pid).is_err() {
                self.unwatched.insert(pid);
            }
        }
    }

    /// Retries the probers that could not be watched. It is an error if one still cannot, or if another program detached ours.
    pub(super) fn retry(&mut self, ebpf: &mut Ebpf, walk: &mut Walk) -> io::Result<()> {
        std::mem::take(&mut self.unwatched).into_iter().try_for_each(|pid| self.watch(ebpf, walk, pid))?;
        if !has_detached_link() {
            return Ok(());
        }
        if self.cgroups.take_gone().is_empty() {
            return Err(io::Error::other("somebody detached it from a prober's cgroup"));
        }
        Ok(())
    }

    /// Attaches to the cgroup of a process, unless the program is already there. Skips a process that has exited.
    fn watch(&mut self, ebpf: &mut Ebpf, walk: &mut Walk, pid: u32) -> io::Result<()> {
        let attached = cgroup::of_process(pid).and_then(|folder| {
            let folder = folder.ok_or_else(|| io::Error::other(IN_ROOT))?;
            let Some(file) = self.cgroups.open(Some(&folder))? else { return Ok(()) };
            let is_attached =
                self.cgroups.add(&file, Some(folder), || walk.attach_cgroup(ebpf, Hook::SockOps, &file))?;
            if is_attached { Ok(()) } else { Err(refused(walk)) }
        });
        attached.or_else(|error| if is_alive(pid) { Err(error) } else { Ok(()) })
    }

    /// Detaches the program and its companions.
    pub(super) fn end(walk: &mut Walk) {
        COMPANIONS.into_iter().chain([Hook::SockOps]).for_each(|hook| walk.detach(hook));
    }
}

/// Whether a link of the program has no cgroup: it was detached, or the cgroup is gone. aya does not report this.
fn has_detached_link() -> bool {
    let files = fs::read_dir("/proc/self/fdinfo").into_iter().flatten().flatten();
    // `bpf_cgroup_link_show_fdinfo` (kernel/bpf/cgroup.c); 3 is BPF_CGROUP_SOCK_OPS.
    let is_detached =
        |text: String| ["\ncgroup_id:\t0\n", "\nattach_type:\t3\n"].iter().all(|line| text.contains(line));
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).any(is_detached)
}

fn refused(walk: &Walk) -> io::Error {
    io::Error::other(walk.explain(walk.refusals(Hook::SockOps)))
}
