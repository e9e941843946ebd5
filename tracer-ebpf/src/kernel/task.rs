//! `struct task_struct`: names, parents, namespaces, cgroup, files.

use aya_ebpf::helpers::generated::bpf_get_current_task;
use tracer_common::{ABSENT32, actor::COMM_LEN};

use super::{Net, Sock, Task, read, read_or_zero, read_str};
use crate::maps::global;

impl Task {
    #[inline(always)]
    pub fn current() -> Self {
        Self(unsafe { bpf_get_current_task() })
    }

    #[inline(always)]
    pub fn leader(self) -> Self {
        Self(read_or_zero(self.0, global!(OFFS.task_group_leader)))
    }

    #[inline(always)]
    pub fn parent(self) -> Self {
        Self(read_or_zero(self.0, global!(OFFS.task_real_parent)))
    }

    #[inline(always)]
    pub fn tgid(self) -> u32 {
        read_or_zero(self.0, global!(OFFS.task_tgid))
    }

    #[inline(always)]
    pub fn tid(self) -> u32 {
        read_or_zero(self.0, global!(OFFS.task_pid))
    }

    /// `dst` must be zeroed: before 5.17 the bytes after the NUL in `task->comm` are garbage, so they are not copied.
    #[inline(always)]
    pub fn comm(self, dst: &mut [u8; COMM_LEN]) -> bool {
        read_str(self.0, global!(OFFS.task_comm), dst)
    }

    /// The first eight bytes of `task->comm`. Bytes after a NUL are garbage.
    #[inline(always)]
    pub fn comm_head(self) -> Option<u64> {
        read(self.0, global!(OFFS.task_comm))
    }

    /// `task->nsproxy`; 0 after exit.
    #[inline(always)]
    pub fn nsproxy(self) -> u64 {
        read_or_zero(self.0, global!(OFFS.task_nsproxy))
    }

    #[inline(always)]
    pub fn netns(self) -> u32 {
        nsproxy_netns(self.nsproxy())
    }

    /// kernfs id of the cgroup in the hierarchy of the memory controller, or absent.
    #[inline(always)]
    pub fn memory_cgroup(self) -> Option<u64> {
        let (subsys, index) = (global!(OFFS.css_set_subsys), global!(ENUMS.memory_cgrp_id));
        if subsys == ABSENT32 || index == ABSENT32 {
            return None;
        }
        let css = read::<u64>(self.css_set()?, subsys + index * 8)?;
        cgroup_id(read(css, global!(OFFS.css_cgroup))?)
    }

    /// kernfs id of the cgroup in the unified hierarchy, or absent.
    #[inline(always)]
    pub fn unified_cgroup(self) -> Option<u64> {
        cgroup_id(read(self.css_set()?, global!(OFFS.css_set_dfl_cgrp))?)
    }

    #[inline(always)]
    fn css_set(self) -> Option<u64> {
        read(self.0, global!(OFFS.task_cgroups))
    }

    /// Begin and end of the environment in the task's memory. Kernel threads have none.
    #[inline(always)]
    pub fn environment(self) -> Option<(u64, u64)> {
        let mm = read::<u64>(self.0, global!(OFFS.task_mm)).filter(|mm| *mm != 0)?;
        Some((read(mm, global!(OFFS.mm_env_start))?, read(mm, global!(OFFS.mm_env_end))?))
    }

    /// The socket behind a file descriptor of this task.
    #[inline(always)]
    pub fn socket(self, fd: u32) -> Option<Sock> {
        let files = read::<u64>(self.0, global!(OFFS.task_files))?;
        let table = read::<u64>(files, global!(OFFS.files_fdt))?;
        let array = read::<u64>(table, global!(OFFS.fdt_fd))?;
        let file = read::<u64>(array + u64::from(fd) * 8, 0)?;
        let socket = read::<u64>(file, global!(OFFS.file_private))?;
        read(socket, global!(OFFS.socket_sk)).map(Sock)
    }
}

#[inline(always)]
fn cgroup_id(cgroup: u64) -> Option<u64> {
    let node = read::<u64>(cgroup, global!(OFFS.cgroup_kn))?;
    read(node, global!(OFFS.kernfs_id))
}

/// Inode number of the network namespace in a `struct nsproxy`, or absent.
#[inline(always)]
pub fn nsproxy_netns(nsproxy: u64) -> u32 {
    Net(read_or_zero(nsproxy, global!(OFFS.nsproxy_net))).inum()
}

/// Whether two `struct nsproxy` differ at most in their network (and time) namespaces.
#[inline(always)]
pub fn differ_only_in_netns(left: u64, right: u64) -> bool {
    let same = |offset| read::<u64>(left, offset) == read::<u64>(right, offset);
    same(global!(OFFS.nsproxy_uts))
        && same(global!(OFFS.nsproxy_ipc))
        && same(global!(OFFS.nsproxy_mnt))
        && same(global!(OFFS.nsproxy_pid))
        && same(global!(OFFS.nsproxy_cgroup))
}

/// Path of the executed program, from a `struct linux_binprm`.
#[inline(always)]
pub fn binprm_path<const N: usize>(binprm: u64, dst: &mut [u8; N]) -> bool {
    let name = read_or_zero::<u64>(binprm, global!(OFFS.binprm_filename));
    read_str(name, 0, dst)
}
