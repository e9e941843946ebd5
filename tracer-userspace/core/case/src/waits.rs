//! What a thread in state D waits for, by the function of the kernel that it sleeps in (`/proc/PID/wchan`).

use tracer_model::event::ServerProcess;
use tracer_model::record::Command;

/// Beginnings of functions of file systems, of the block layer and of what all file systems share.
const OF_FILE_SYSTEM: &[&str] = &[
    "add_transaction_credits",
    "balance_dirty",
    "bio",
    "blk",
    "btrfs",
    "ceph",
    "cifs",
    "d_alloc",
    "dio",
    "dlm",
    "dm_",
    "do_fsync",
    "do_get_write_access",
    "do_open",
    "do_renameat",
    "do_rmdir",
    "do_sync",
    "do_unlinkat",
    "ext4",
    "f2fs",
    "filename_",
    "folio",
    "freeze",
    "fuse",
    "gfs2",
    "inode",
    "io_schedule",
    "iomap",
    "iterate_dir",
    "jbd2",
    "link_path_walk",
    "lock_page",
    "lock_rename",
    "lookup",
    "md_",
    "nfs",
    "nlm",
    "ocfs2",
    "open_last_lookups",
    "ovl_",
    "p9",
    "path_",
    "percpu_rwsem_wait",
    "raid",
    "request_wait_answer",
    "rpc",
    "rq_qos_wait",
    "sb_",
    "smb",
    "start_this_handle",
    "submit_bio",
    "sync_",
    "txg",
    "v9fs",
    "vfs_",
    "wait_for_response",
    "wait_on_buffer",
    "wait_on_inode",
    "wait_on_page",
    "wait_transaction",
    "walk_component",
    "wb_",
    "wbt_wait",
    "writeback",
    "xfs",
    "xlog",
    "zfs",
    "zil",
    "zio",
];

/// Where a parent waits for the child of vfork() to call exec (`wait_for_vfork_done`, kernel/fork.c).
const OF_VFORK: &[&str] = &["kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"];

/// A thread in this function waits for a disk or a file system.
pub(crate) fn is_of_file_system(function: &str) -> bool {
    let name = function.trim_start_matches('_');
    OF_FILE_SYSTEM.iter().any(|begin| name.starts_with(begin))
}

/// What a thread in this function waits for.
pub fn describe(function: &str) -> Option<&'static str> {
    if OF_VFORK.contains(&function) {
        return Some("a child process that has not called exec yet (vfork)");
    }
    is_of_file_system(function).then_some("a disk or a file system")
}

/// Shows where the threads of these processes wait.
pub fn show(servers: &[ServerProcess]) -> Option<Command> {
    let blocked = servers.iter().find(|it| it.tasks.blocked > 0).or_else(|| servers.first())?;
    Some(Command::on_node(format!("grep -H . /proc/{}/task/*/wchan", blocked.pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_child_or_a_lock_of_the_network_is_none_for_a_disk() {
        for function in ["path_openat", "__folio_lock_killable", "nfs4_proc_lookup", "request_wait_answer", "xfs_ilock"]
        {
            assert!(is_of_file_system(function), "{function}");
        }
        for function in ["kernel_clone", "rtnl_lock", "cgroup_kn_lock_live", "mem_cgroup_oom", "synchronize_rcu"] {
            assert!(!is_of_file_system(function), "{function}");
        }
        assert_eq!(describe("kernel_clone"), Some("a child process that has not called exec yet (vfork)"));
        assert_eq!(describe("rtnl_lock"), None);
    }
}
