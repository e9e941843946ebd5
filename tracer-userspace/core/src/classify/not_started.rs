//! Why a runtime did not start the command of a probe, where that is neither the command nor its image: by its own words.

/// What kept the runtime from starting a command, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotStarted {
    words: &'static [&'static str],
    /// To follow "could not be run: ".
    pub(super) why: &'static str,
    pub(super) remediation: &'static str,
}

/// In this order: a message about a cgroup names the error of the call, too.
const CAUSES: &[NotStarted] = &[
    NotStarted {
        words: &["apparmor"],
        why: "the AppArmor profile of the container could not be applied",
        remediation: "see whether the node has the profile (aa-status) and what AppArmor denied (journalctl -k -g apparmor); load the profile again (apparmor_parser -r FILE), or correct the container's appArmorProfile",
    },
    NotStarted {
        words: &["cgroup"],
        why: "the runtime could not use the container's cgroup",
        remediation: "the container's cgroup is gone or was moved: compare the cgroup driver of the kubelet with that of the runtime (systemd or cgroupfs, the same in both), and delete the pod, so that it is made again",
    },
    NotStarted {
        words: &["too many open files"],
        why: "the runtime has no file descriptor left",
        remediation: "see who holds the file descriptors (ls /proc/$(pidof containerd)/fd | wc -l; the same of crio and the container's shim), and raise LimitNOFILE of that service, fs.file-max or fs.inotify.max_user_instances",
    },
    NotStarted {
        words: &["resource temporarily unavailable"],
        why: "no process could be made: a limit of processes is reached",
        remediation: "see which limit: pids.current and pids.max in the container's cgroup and those above it (podPidsLimit of the kubelet), and kernel.pid_max. End the processes that the container leaves behind (zombies: ps -eo stat,pid,ppid,comm), or raise the limit",
    },
    NotStarted {
        words: &["operation not permitted"],
        why: "the kernel did not permit the runtime a step of the start (EPERM)",
        remediation: "see who denies it: the container's seccomp profile and capabilities, SELinux (ausearch -m avc -ts recent) or AppArmor (journalctl -k -g DENIED), or a runtime that is too old for this kernel",
    },
];

/// The limit or the guard that the runtime's words name. What it quotes is the pod's: its command, for one.
pub(super) fn cause(words: &str) -> Option<&'static NotStarted> {
    let has_no_program = words.contains("exec: \"") && NO_PROGRAM.iter().any(|it| words.contains(it));
    let own: String = words.split('"').step_by(2).collect::<String>().to_lowercase();
    let names = |cause: &&NotStarted| cause.words.iter().any(|it| own.contains(it));
    CAUSES.iter().find(names).filter(|_| !has_no_program)
}

/// As runc and crun end what they say of a program that is not there, or is none.
const NO_PROGRAM: &[&str] = &[
    "executable file not found",
    "no such file or directory",
    "exec format error",
    "permission denied",
    "is a directory",
];

#[cfg(test)]
mod tests {
    use super::cause;

    const RUNC: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9f\": OCI runtime exec failed: exec failed: unable to start container process: ";

    #[test]
    fn a_guard_or_a_limit_is_named() {
        for (words, why) in [
            (
                "error during container init: unable to apply apparmor profile: apparmor failed to apply profile: write /proc/self/attr/apparmor/exec: no such file or directory",
                "AppArmor",
            ),
            ("can't open cgroup: openat2 /sys/fs/cgroup/kubepods.slice: no such file or directory", "cgroup"),
            (
                "error adding pid 7 to cgroups: failed to write 7: open /sys/fs/cgroup/x: operation not permitted",
                "cgroup",
            ),
            ("error creating new parent process: pipe2: too many open files", "file descriptor"),
            ("fork/exec /proc/self/fd/6: resource temporarily unavailable", "limit of processes"),
            ("error closing exec fds: open /proc/self/fd: operation not permitted", "EPERM"),
        ] {
            let found = cause(&format!("{RUNC}{words}")).map(|it| it.why);
            assert!(found.is_some_and(|it| it.contains(why)), "{words}: {found:?}");
        }
    }

    /// A command may be called anything.
    #[test]
    fn what_is_quoted_is_the_pod_s() {
        for words in [
            r#"exec: "curl": executable file not found in $PATH: unknown"#,
            r#"exec: "/opt/apparmor/cgroup": stat /opt/apparmor/cgroup: no such file or directory"#,
            r#"exec: "/opt/cgroup/run": permission denied"#,
            "error executing setns process: exit status 1: unknown",
        ] {
            assert_eq!(cause(&format!("{RUNC}{words}")), None, "{words}");
        }
    }
}
