//! Explains why the kernel refused a program type of a hook.

use std::{error::Error as _, fs, io};

use aya::programs::ProgramError;

use super::capabilities::{self, CapabilitySet};
use super::hooks::ProgramType;
use super::switches::{self, Switch};
use super::tracefs;
use tracer_terminal::error::os_message;

/// The perf device that attaches kprobes (`kernel/events/core.c`, `perf_kprobe`).
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe/type";

/// An errno of the kernel that libc does not have (`include/linux/errno.h`).
const ENOTSUPP: i32 = 524;

/// The explanation for a program type or a helper that a locked-down kernel withholds.
pub(super) const LOCKDOWN: &str = "this kernel forbids it, as lockdown `confidentiality` does (see /sys/kernel/security/lockdown): boot it with lockdown=integrity";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Load,
    Attach,
}

/// One failed try.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) program_type: ProgramType,
    pub(super) stage: Stage,
    target: &'static str,
    errno: Option<i32>,
    kind: Kind,
    text: String,
}

/// The kind of failure, as far as the error type shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kernel,
    /// The verifier refused the program and wrote a log.
    Verifier,
    /// Programs may not read memory by helpers, or may not be attached so.
    Lockdown,
    /// The function is not in the kernel's BTF.
    NoBtfType,
    /// The kernel would attach the program but never call it.
    Silenced(&'static Switch),
}

impl Refusal {
    pub(super) fn new(program_type: ProgramType, stage: Stage, target: &'static str, error: &ProgramError) -> Self {
        let kind = match error {
            // The log is of a success: only the file descriptor was missing.
            ProgramError::LoadError { io_error, .. } if is_out_of_files(io_error) => Kind::Kernel,
            ProgramError::LoadError { verifier_log, .. } => kind_of(&verifier_log.to_string()),
            ProgramError::Btf(_) => Kind::NoBtfType,
            _ => Kind::Kernel,
        };
        if matches!(kind, Kind::Verifier | Kind::Lockdown) {
            tracing::debug!(target, program_type = program_type.name(), %error, "the verifier refused a program");
        }
        Self { program_type, stage, target, errno: errno(error), kind, text: chain(error) }
    }

    /// Whether loading failed with EPERM without a verifier log.
    pub(super) fn is_policy(&self) -> bool {
        self.stage == Stage::Load && self.kind == Kind::Kernel && self.errno == Some(libc::EPERM)
    }

    /// Whether this kernel cannot attach trampolines at all: arm64 before 6.4 (`register_fentry`).
    pub(super) fn is_without_trampolines(&self) -> bool {
        (self.program_type, self.stage, self.errno) == (ProgramType::Fentry, Stage::Attach, Some(ENOTSUPP))
    }

    /// Whether only this function is missing. perf returns ENOENT, or EINVAL for a function that may not be probed. Without kprobes
    /// in the kernel, the ENOENT is about the perf device.
    pub(super) fn is_missing_function(&self) -> bool {
        matches!(self.errno, Some(libc::ENOENT | libc::EINVAL | libc::EADDRNOTAVAIL))
            && !self.text.contains("event_source/devices/kprobe")
    }

    pub(super) fn is_lockdown(&self) -> bool {
        self.kind == Kind::Lockdown
    }

    /// Whether a missing capability explains it.
    pub(super) fn is_permission(&self) -> bool {
        matches!(self.errno, Some(libc::EPERM | libc::EACCES)) && !matches!(self.kind, Kind::Verifier | Kind::Lockdown)
    }

    /// The refusal of a program type that the options exclude.
    pub(super) fn excluded(program_type: ProgramType, text: &str) -> Self {
        Self { program_type, stage: Stage::Load, target: "", errno: None, kind: Kind::Kernel, text: text.into() }
    }

    /// The refusal of a program type that a kernel with lockdown `confidentiality` cannot attach.
    pub(super) fn by_lockdown(program_type: ProgramType) -> Self {
        Self { kind: Kind::Lockdown, ..Self::excluded(program_type, "") }
    }

    /// Refusals of program types that the kernel would attach but never call.
    pub(super) fn silenced() -> impl Iterator<Item = Self> {
        switches::off()
            .flat_map(|switch| switch.silences.iter().map(move |program_type| Self::silenced_by(*program_type, switch)))
    }

    fn silenced_by(program_type: ProgramType, switch: &'static Switch) -> Self {
        Self { kind: Kind::Silenced(switch), ..Self::excluded(program_type, "") }
    }

    /// The refusal of kprobes in a kernel without them, known without loading a program.
    pub(super) fn without_kprobes() -> Option<Self> {
        let error = fs::metadata(KPROBES).err().filter(|error| error.kind() == io::ErrorKind::NotFound)?;
        let refusal = Self::excluded(ProgramType::Kprobe, &format!("{KPROBES}: {error}"));
        Some(Self { stage: Stage::Attach, errno: error.raw_os_error(), ..refusal })
    }

    /// The refusal to attach to a cgroup without the capability, known before a cgroup exists.
    pub(super) fn without_net_admin() -> Option<Self> {
        let may = capabilities::has(CapabilitySet::NET_ADMIN) || capabilities::has(CapabilitySet::SYS_ADMIN);
        let (stage, errno) = (Stage::Attach, Some(libc::EPERM));
        (!may).then(|| Self { stage, target: "ingress", errno, ..Self::excluded(ProgramType::Cgroup, "") })
    }

    /// The command that fixes it, if a setting of the kernel is the reason.
    pub(super) const fn fix(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Silenced(switch) => Some(switch.fix),
            _ => None,
        }
    }

    pub(super) fn needs(&self, any_attached: bool) -> Option<&'static str> {
        if self.lacks_tracefs() {
            return Some("CAP_SYS_ADMIN");
        }
        let refused = matches!(self.errno, Some(libc::EPERM | libc::EACCES)) && self.kind == Kind::Kernel;
        match (self.program_type, self.stage) {
            _ if !refused => None,
            (ProgramType::Fentry, Stage::Load) if any_attached => None,
            (_, Stage::Load) => Some("CAP_BPF and CAP_PERFMON"),
            (ProgramType::Kprobe | ProgramType::Tracepoint, Stage::Attach) => Some("CAP_SYS_ADMIN"),
            (ProgramType::Cgroup, Stage::Attach) => Some("CAP_NET_ADMIN"),
            (ProgramType::Fentry | ProgramType::RawTracepoint, Stage::Attach) => None,
        }
    }

    /// Whether tracefs is missing, which classic tracepoints need.
    fn lacks_tracefs(&self) -> bool {
        (self.program_type, self.stage) == (ProgramType::Tracepoint, Stage::Attach)
            && matches!(self.errno, None | Some(libc::ENOENT))
            && !tracefs::is_mounted()
            && !capabilities::has(CapabilitySet::SYS_ADMIN)
    }

    pub(super) fn explain(&self, any_attached: bool) -> String {
        let program_type = self.program_type.name();
        let target = self.target;
        match (self.program_type, self.stage, self.kind, self.errno) {
            (_, _, Kind::Verifier, _) => {
                format!("{program_type} {target}: the kernel's verifier refuses the program ({})", self.text)
            }
            (_, _, Kind::Lockdown, _) => LOCKDOWN.to_owned(),
            (_, _, Kind::Silenced(switch), _) => format!("{program_type}: {}", switch.explain()),
            (_, _, Kind::NoBtfType, _) => format!("{program_type} {target}: not a function in this kernel's BTF"),
            (ProgramType::Fentry, Stage::Load, _, Some(libc::EPERM)) if any_attached => {
                format!("{program_type}: refused by this kernel's policy")
            }
            (ProgramType::Fentry, Stage::Attach, _, Some(ENOTSUPP)) => {
                format!("{program_type}: this kernel has no trampolines for functions (arm64 has them from 6.4 on)")
            }
            (_, Stage::Load, _, Some(libc::EPERM)) => format!("{program_type} {target}: needs CAP_BPF and CAP_PERFMON"),
            (ProgramType::Kprobe, Stage::Attach, _, Some(libc::ENOENT)) if !self.is_missing_function() => {
                format!("{program_type}: kprobes are not compiled into this kernel")
            }
            (ProgramType::Kprobe, Stage::Attach, ..) if self.is_missing_function() => {
                format!("{program_type} {target}: no such function in this kernel")
            }
            (ProgramType::Kprobe | ProgramType::Tracepoint, Stage::Attach, _, Some(libc::EACCES | libc::EPERM)) => {
                format!("{program_type}: needs CAP_SYS_ADMIN, or kernel.perf_event_paranoid at 2 or lower")
            }
            (ProgramType::RawTracepoint, Stage::Attach, _, Some(libc::ENOENT)) => {
                format!("{program_type} {target}: no such tracepoint in this kernel")
            }
            (ProgramType::RawTracepoint, Stage::Attach, _, Some(libc::EINVAL)) => {
                format!("{program_type} {target}: the tracepoint has fewer arguments in this kernel")
            }
            (ProgramType::Cgroup, Stage::Attach, _, Some(libc::EPERM)) => {
                format!("{program_type} {target}: needs CAP_NET_ADMIN")
            }
            (ProgramType::Tracepoint, Stage::Attach, _, None | Some(libc::ENOENT)) if self.lacks_tracefs() => {
                format!("{program_type}: tracefs is not mounted here, and mounting it needs CAP_SYS_ADMIN")
            }
            (ProgramType::Tracepoint, Stage::Attach, _, None | Some(libc::ENOENT)) => {
                format!("{program_type} {target}: no such tracepoint, or tracefs cannot be mounted")
            }
            _ => format!("{program_type} {target}: {}", self.text),
        }
    }
}

fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The kind of failure by the verifier's log. A locked-down kernel withholds the helper (`bpf_tracing_func_proto`): the log then has
/// "unknown func", in newer kernels "program of this type cannot use helper". All other kernels have the helper since 5.5. aya
/// detects that it is missing and uses its older name.
fn kind_of(log: &str) -> Kind {
    let withheld = |line: &str| {
        ["bpf_probe_read_kernel", "bpf_probe_read#4"].iter().any(|helper| line.contains(helper))
            && (line.contains("unknown func") || line.contains("cannot use helper"))
    };
    match log.trim() {
        "" => Kind::Kernel,
        log if log.lines().any(withheld) => Kind::Lockdown,
        _ => Kind::Verifier,
    }
}

/// The first errno in an error's chain.
pub(super) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

/// An error and its causes in one line, without the verifier's log.
fn chain(error: &ProgramError) -> String {
    let mut text = match error {
        ProgramError::LoadError { .. } => "BPF_PROG_LOAD".to_owned(),
        other => other.to_string(),
    };
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {}", error.downcast_ref().map_or_else(|| error.to_string(), os_message));
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    fn refused(log: &str) -> Refusal {
        refused_by(libc::EINVAL, log)
    }

    fn refused_by(errno: i32, log: &str) -> Refusal {
        let io_error = io::Error::from_raw_os_error(errno);
        let error = ProgramError::LoadError { io_error, verifier_log: aya_obj::VerifierLog::new(log.to_owned()) };
        Refusal::new(ProgramType::RawTracepoint, Stage::Load, "inet_sock_set_state", &error)
    }

    #[test]
    fn a_locked_down_kernel_is_named() {
        for answer in [
            "unknown func bpf_probe_read_kernel#113",
            "program of this type cannot use helper bpf_probe_read_kernel#113",
            "program of this type cannot use helper bpf_probe_read#4",
        ] {
            let refusal = refused(&format!("9: (85) call bpf_probe_read_kernel#113\n{answer}\nprocessed 10 insns\n"));
            assert!(refusal.explain(false).contains("lockdown=integrity"), "{}", refusal.explain(false));
            assert_eq!((refusal.is_policy(), refusal.needs(false)), (false, None));
        }
    }

    #[test]
    fn a_kernel_without_trampolines_is_named() {
        let io_error = io::Error::from_raw_os_error(ENOTSUPP);
        let error = ProgramError::SyscallError(SyscallError { call: "bpf_raw_tracepoint_open", io_error });
        let of = |program_type, stage| Refusal::new(program_type, stage, "tcp_connect", &error);
        assert!(of(ProgramType::Fentry, Stage::Attach).is_without_trampolines());
        assert!(of(ProgramType::Fentry, Stage::Attach).explain(true).contains("no trampolines"));
        assert!(!of(ProgramType::Kprobe, Stage::Attach).is_without_trampolines());
        assert!(!of(ProgramType::Fentry, Stage::Load).is_without_trampolines());
    }

    #[test]
    fn a_program_type_that_is_never_called_names_the_setting_and_its_fix() {
        let off = &switches::SWITCHES[0];
        let refusal = Refusal::silenced_by(ProgramType::Kprobe, off);
        assert!(refusal.explain(true).starts_with("kprobe: kernel.ftrace_enabled is 0: "), "{}", refusal.explain(true));
        assert_eq!((refusal.needs(true), refusal.fix()), (None, Some("sysctl -w kernel.ftrace_enabled=1")));
        assert!(!refusal.is_missing_function() && !refusal.is_policy());
    }

    #[test]
    fn other_refusals_of_the_verifier_are_no_lockdown() {
        for log in ["9: (85) call bpf_probe_read_kernel#113\nR2 min value is negative", "unknown func bpf_loop#181"] {
            assert!(refused(log).explain(false).contains("verifier refuses"), "{log}");
        }
        assert!(!refused(" ").explain(false).contains("verifier"));
        let full = refused_by(libc::EMFILE, "processed 2213 insns (limit 1000000)").explain(false);
        assert!(full.contains("BPF_PROG_LOAD: Too many open files (raise `ulimit -n`"), "{full}");
    }
}
