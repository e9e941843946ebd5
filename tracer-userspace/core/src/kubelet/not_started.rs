//! Why a runtime did not start the command of a probe, if neither the command nor its image is the reason.

use std::borrow::Cow;

use tracer_model::record::{Cause, Command, Remediation};

/// What kept the runtime from starting a command, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotStarted {
    words: &'static [&'static str],
    pub(super) cause: Cause,
    /// Follows "could not be run: ".
    pub(super) why: &'static str,
    fix: &'static str,
    /// What to run on the node for it.
    show: &'static [&'static str],
}

impl NotStarted {
    pub(super) fn remediation(&self) -> Remediation {
        Remediation::from(self.fix).run(self.show.iter().copied().map(Command::on_node))
    }
}

/// runc: `possibly OOM-killed`, `setting cgroup config … caused: container init was OOM-killed (memory limit too low?)`.
const OUT_OF_MEMORY: NotStarted = NotStarted {
    words: &["oom-killed"],
    cause: Cause::ExecNotRun,
    why: "too little memory for the runtime's own process",
    fix: "Raise the container's memory limit, or let it use less: the process that starts the command is charged to it (runc: some 10 MiB). memory.current, memory.max and memory.events of its cgroup show its use and its kills",
    show: &["dmesg | grep -i oom"],
};

const OUT_OF_PIDS: NotStarted = NotStarted {
    words: &["resource temporarily unavailable"],
    cause: Cause::ExecNotRun,
    why: "no process could be made: a limit of processes is reached",
    fix: "End the processes that the container leaves behind (zombies), or raise the limit: pids.max of the container's cgroup or one above it (podPidsLimit of the kubelet), or kernel.pid_max",
    show: &["ps -eo stat,pid,ppid,comm"],
};

const KILLED: NotStarted = NotStarted {
    words: &[],
    cause: Cause::ExecFailed,
    why: "a process of its container was killed for lack of memory",
    fix: "Raise the container's memory limit, or let it use less: the command is charged to it. memory.current, memory.max and memory.events of its cgroup show its use and its kills",
    show: &["dmesg | grep -i oom"],
};

/// A limit of the container's cgroup that the kernel counts each time it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Processes,
    Memory,
}

impl Limit {
    /// `ended`: it stopped the command, which ran, and not the runtime.
    pub(super) const fn obstacle(self, ended: bool) -> &'static NotStarted {
        match self {
            Self::Processes => &OUT_OF_PIDS,
            Self::Memory if ended => &KILLED,
            Self::Memory => &OUT_OF_MEMORY,
        }
    }

    /// Each with its file.
    pub(super) const fn counters(self) -> [&'static str; 2] {
        match self {
            Self::Processes => ["pids.events.local max", "pids.events max"],
            Self::Memory => ["memory.events oom_kill", "memory.oom_control oom_kill"],
        }
    }
}

/// runc's own process ended in the container before it ran the command. Its message does not say why.
const ENDED: [&str; 3] = [" init-p: ", "setns process", "signal: killed"];

/// The limits that the message of the runtime names, or that it may be about.
pub(super) fn limits(words: &str) -> &'static [Limit] {
    let ended = || {
        let unquoted = without_quoted(&message_of(words)).to_lowercase();
        ENDED.iter().any(|it| unquoted.contains(it))
    };
    match cause(words) {
        Some(found) if found.why == OUT_OF_PIDS.why => &[Limit::Processes],
        Some(found) if found.why == OUT_OF_MEMORY.why => &[Limit::Memory],
        None if ended() => &[Limit::Processes, Limit::Memory],
        _ => &[],
    }
}

/// The order matters: a message about a cgroup also names the error of the system call.
const CAUSES: &[NotStarted] = &[
    NotStarted {
        words: &["paused container", "in a paused state", "is paused, unpause the container"],
        cause: Cause::TargetFrozen,
        why: "its container is paused",
        fix: "Resume the container. Then find who paused it: a checkpoint, a backup, a debugger or a person",
        show: &["ctr -n k8s.io tasks resume CONTAINER-ID"],
    },
    NotStarted {
        words: &["apparmor"],
        cause: Cause::ExecNotRun,
        why: "the AppArmor profile of the container could not be applied",
        fix: "Load the AppArmor profile again, if the node does not have it; or correct the container's appArmorProfile",
        show: &["aa-status", "journalctl -k -g apparmor", "apparmor_parser -r FILE"],
    },
    OUT_OF_MEMORY,
    // `cpuset_can_attach`, kernel/cgroup/cpuset.c
    NotStarted {
        words: &["cgroup.procs: no space left on device"],
        cause: Cause::ExecNotRun,
        why: "the cpuset of the container's cgroup is empty",
        fix: "Compare cpuset.cpus and cpuset.mems of the container's cgroup with those of the cgroups above it: one of them is empty. Find what set it: a CPU that went offline, a static CPU manager, a change by hand",
        show: &[],
    },
    NotStarted {
        words: &["cgroup.procs: no such file or directory", "cgroup.procs: no such device"],
        cause: Cause::ExecNotRun,
        why: "the container's cgroup is gone",
        fix: "Do nothing if the container had just ended: its cgroup went with it. If it goes on while the container runs, the cgroup was moved. Then set the same cgroup driver (systemd or cgroupfs) for kubelet and runtime, and delete the pod",
        show: &[],
    },
    // `cgroup_migrate_vet_dst`, kernel/cgroup/cgroup.c: a cgroup with enabled controllers below it takes no process.
    NotStarted {
        words: &["cgroup.procs: device or resource busy"],
        cause: Cause::ExecNotRun,
        why: "the container has made cgroups below its own, so that its own can take no process",
        fix: "Update runc: a newer one starts the command in the cgroup of the container's first process. Or let the container make no cgroups (systemd or a container engine in it does), or use a network probe",
        show: &[],
    },
    NotStarted {
        words: &["cgroup"],
        cause: Cause::ExecNotRun,
        why: "the runtime could not use the container's cgroup",
        fix: "Look at the cgroup that the message names, and at the error behind it. If that cgroup is gone or was moved, the kubelet and the runtime may have different cgroup drivers (systemd or cgroupfs): set the same one, and delete the pod",
        show: &[],
    },
    NotStarted { words: &["cannot allocate memory"], ..OUT_OF_MEMORY },
    NotStarted {
        words: &["no space left on device"],
        cause: Cause::ExecNotRun,
        why: "a file system of the runtime is full",
        fix: "Find the full one (/run, /tmp, the runtime's folder in /var/lib), and free it: kubelet and runtime write there for each command",
        show: &["df -h", "df -i"],
    },
    NotStarted {
        words: &["too many open files"],
        cause: Cause::ExecNotRun,
        why: "the runtime has no file descriptor left",
        fix: "Find the process that holds the file descriptors (containerd, crio, the container's shim), and raise LimitNOFILE of that service, fs.file-max or fs.inotify.max_user_instances",
        show: &["ls /proc/$(pidof containerd)/fd | wc -l"],
    },
    OUT_OF_PIDS,
    NotStarted {
        words: &["operation not permitted"],
        cause: Cause::ExecNotRun,
        why: "the kernel did not permit the runtime a step of the start (EPERM)",
        fix: "Find what denies it: the container's seccomp profile and capabilities, SELinux, AppArmor, or a runtime that is too old for this kernel",
        show: &["ausearch -m avc -ts recent", "journalctl -k -g DENIED"],
    },
];

/// The obstacle that the message of the runtime names. Quoted parts name none: they are the pod's, its command for one.
pub(super) fn cause(words: &str) -> Option<&'static NotStarted> {
    let message = message_of(words);
    let names_program = ["exec: \"", "executable file `"].iter().any(|it| message.contains(it));
    let has_no_program = names_program && NO_PROGRAM.iter().any(|it| message.to_lowercase().contains(it));
    let unquoted = without_quoted(&message).to_lowercase();
    let names = |cause: &&NotStarted| cause.words.iter().any(|it| unquoted.contains(it));
    CAUSES.iter().find(names).filter(|_| !has_no_program)
}

/// CRI-O passes on a line of runc's log, which quotes the whole message (logrus).
fn message_of(words: &str) -> Cow<'_, str> {
    let line = words.split_once("command error: time=\"").filter(|(before, _)| !before.contains('"'));
    let Some((_, message)) = line.and_then(|(_, line)| line.split_once(" level=error msg=\"")) else {
        return words.into();
    };
    let mut chars = message.chars();
    let next = || match chars.next()? {
        '"' => None,
        '\\' => chars.next(),
        other => Some(other),
    };
    std::iter::from_fn(next).collect::<String>().into()
}

/// runc quotes with `"`, and crun with a backtick.
fn without_quoted(message: &str) -> String {
    let mut open = None;
    let is_own = |it: &char| {
        let quotes = matches!(it, '"' | '`');
        match open {
            None if quotes => open = Some(*it),
            Some(mark) if mark == *it => open = None,
            _ => return open.is_none(),
        }
        false
    };
    message.chars().filter(is_own).collect()
}

/// How runc and crun end a message about a program that does not exist or cannot be executed.
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

    const CONTAINERD: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9f\": OCI runtime exec failed: ";
    const RUNC: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9f\": OCI runtime exec failed: exec failed: unable to start container process: ";

    #[test]
    fn a_security_module_or_a_limit_is_named() {
        for (words, why) in [
            // Written by runc 1.1.5 for a container with that limit, cgroup or profile (kernel 6.18).
            (
                "exec failed: unable to start container process: read init-p: connection reset by peer (possibly OOM-killed)",
                "memory",
            ),
            ("runtime/cgo: pthread_create failed: Resource temporarily unavailable", "limit of processes"),
            (
                "exec failed: unable to start container process: error adding pid 27218 to cgroups: failed to write 27218: openat2 /sys/fs/cgroup/pids/causes-runc/cgroup.procs: no such file or directory",
                "cgroup",
            ),
            (
                "exec failed: unable to start container process: error adding pid 27218 to cgroups: failed to write 27218: openat2 /sys/fs/cgroup/pids/causes-runc/cgroup.procs: no such file or directory",
                "cgroup is gone",
            ),
            (
                "exec failed: unable to start container process: error adding pid 7 to cgroups: failed to write 7: write /sys/fs/cgroup/cpuset/x/cgroup.procs: no space left on device",
                "cpuset",
            ),
            (
                "exec failed: unable to start container process: error adding pid 7 to cgroups: failed to write 7: write /sys/fs/cgroup/x/cgroup.procs: device or resource busy",
                "made cgroups below its own",
            ),
            ("exec failed: pipe2: too many open files", "file descriptor"),
            ("exec failed: cannot exec in a paused container (use --ignore-paused to override)", "is paused"),
            ("failed to create exec \"a4\": cannot exec in a paused state: unknown", "is paused"),
            (
                "failed to exec in container - Exec setup failed - Error response from daemon: Container 4f1e7c is paused, unpause the container before exec",
                "is paused",
            ),
            (
                "exec failed: unable to start container process: apparmor failed to apply profile: write /proc/self/attr/exec: invalid argument",
                "AppArmor",
            ),
            // Made by hand: the order of the causes matters for the first three.
            (
                "process_linux.go:112: setting cgroup config for procHooks process caused: container init was OOM-killed (memory limit too low?)",
                "memory",
            ),
            (
                "error adding pid 7 to cgroups: failed to write 7: open /sys/fs/cgroup/x: operation not permitted",
                "cgroup",
            ),
            ("error adding pid 7 to cgroups: mkdir /sys/fs/cgroup/x: cannot allocate memory", "cgroup"),
            ("open /tmp/runc-process1: no space left on device", "full"),
            ("error closing exec fds: open /proc/self/fd: operation not permitted", "EPERM"),
        ] {
            let found = cause(&format!("{CONTAINERD}{words}: unknown")).map(|it| it.why);
            assert!(found.is_some_and(|it| it.contains(why)), "{words}: {found:?}");
        }
    }

    /// The pod chooses the name of its command.
    #[test]
    fn quoted_words_name_no_obstacle() {
        for words in [
            r#"exec: "curl": executable file not found in $PATH: unknown"#,
            r#"exec: "/opt/apparmor/cgroup": stat /opt/apparmor/cgroup: no such file or directory"#,
            r#"exec: "/opt/cgroup/run": permission denied"#,
            "error executing setns process: exit status 1: unknown",
            r#"chdir to cwd ("/opt/cgroup") set in config.json failed: no such file or directory"#,
            "read init-p: connection reset by peer: unknown",
        ] {
            assert_eq!(cause(&format!("{RUNC}{words}")), None, "{words}");
        }
    }

    /// crun quotes with backticks, and writes errors as the C library does.
    #[test]
    fn words_that_crun_quotes_name_no_obstacle() {
        for words in [
            "executable file `/opt/cgroup/run` not found in $PATH: No such file or directory",
            "exec container process `/opt/cgroup/apparmor`: Permission denied",
            r#"executable file `/opt/"cgroup` not found in $PATH: No such file or directory"#,
        ] {
            assert_eq!(cause(&format!("{CONTAINERD}{words}: unknown")), None, "{words}");
        }
        let limit = cause(&format!("{CONTAINERD}fork: Resource temporarily unavailable")).map(|it| it.why);
        assert!(limit.is_some_and(|it| it.contains("limit of processes")), "{limit:?}");
    }

    /// As in kubernetes/kubernetes#116766.
    #[test]
    fn a_log_line_that_cri_o_passes_on_is_unquoted() {
        let of = |message: &str| {
            let time = r#"time="2023-02-25T07:09:57Z""#;
            let handed = "rpc error: code = Unknown desc = command error: ";
            let line = format!("{time} level=error msg=\"exec failed: {message}\"\n, stdout: , stderr: , exit code -1");
            cause(&format!("{handed}{line}")).map(|it| it.why)
        };
        for (words, why) in [
            ("unable to start container process: error adding pid 33082 to cgroups: failed to write 33082", "cgroup"),
            ("cannot exec in a paused container (use --ignore-paused to override)", "is paused"),
            ("pipe2: too many open files", "file descriptor"),
        ] {
            assert!(of(words).is_some_and(|it| it.contains(why)), "{words}: {:?}", of(words));
        }
        for words in [
            r#"unable to start container process: exec: \"/opt/cgroup/run\": permission denied"#,
            r#"unable to start container process: exec: \"/opt/apparmor\": stat /opt/apparmor: no such file or directory"#,
        ] {
            assert_eq!(of(words), None, "{words}");
        }
    }
}
