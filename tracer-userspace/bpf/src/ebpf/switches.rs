//! Settings under which a kernel attaches programs to its functions, says that all is well, and never calls one.

use std::fs;

use super::hooks::Form;

/// One of them, of the whole machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Switch {
    pub name: &'static str,
    /// Where it is read: `0` is off.
    pub path: &'static str,
    /// Forms that the kernel does not call while it is off.
    pub silences: &'static [Form],
    /// The command that sets it on.
    pub fix: &'static str,
}

/// What `ftrace_startup_enable` (kernel/trace/ftrace.c) writes no call for: seen on 5.10 and 6.12. A kprobe at the beginning of a
/// function is one of ftrace's, too, but on arm64, where it is a breakpoint (no `HAVE_KPROBES_ON_FTRACE`).
const BY_FTRACE: &[Form] = if cfg!(target_arch = "aarch64") { &[Form::Fentry] } else { &[Form::Fentry, Form::Kprobe] };

pub const SWITCHES: &[Switch] = &[
    Switch {
        name: "kernel.ftrace_enabled",
        path: "/proc/sys/kernel/ftrace_enabled",
        silences: BY_FTRACE,
        fix: "sysctl -w kernel.ftrace_enabled=1",
    },
    // `kprobes_all_disarmed` (kernel/kprobes.c).
    Switch {
        name: "/sys/kernel/debug/kprobes/enabled",
        path: "/sys/kernel/debug/kprobes/enabled",
        silences: &[Form::Kprobe],
        fix: "echo 1 > /sys/kernel/debug/kprobes/enabled",
    },
];

impl Switch {
    /// By its text; one that cannot be read is taken for on.
    pub fn is_off(text: Option<&str>) -> bool {
        text.is_some_and(|text| text.trim() == "0")
    }

    fn is_off_here(&self) -> bool {
        Self::is_off(fs::read_to_string(self.path).ok().as_deref())
    }

    /// What would become of a program.
    pub(super) fn says(&self) -> String {
        format!("{} is 0: this kernel attaches it and never calls it ({})", self.name, self.fix)
    }
}

/// Whether this kernel would call no program of that form.
pub fn silences(form: Form) -> bool {
    off().any(|switch| switch.silences.contains(&form))
}

pub(super) fn off() -> impl Iterator<Item = &'static Switch> {
    SWITCHES.iter().filter(|switch| switch.is_off_here())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_zero_is_off() {
        let cases = [(Some("0\n"), true), (Some("1\n"), false), (Some(""), false), (None, false)];
        assert!(cases.into_iter().all(|(text, off)| Switch::is_off(text) == off));
    }
}
