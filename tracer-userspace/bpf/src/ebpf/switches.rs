//! Settings with which the kernel attaches programs to its functions without an error, but never calls them.

use std::fs;

use super::hooks::ProgramType;

/// Such a setting; it holds for the whole machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Switch {
    pub name: &'static str,
    /// The file of the setting; `0` is off.
    pub path: &'static str,
    /// Program types that the kernel does not call while the setting is off.
    pub silences: &'static [ProgramType],
    /// The command that turns it on.
    pub fix: &'static str,
}

/// Program types for which `ftrace_startup_enable` (kernel/trace/ftrace.c) then writes no call; verified on 5.10 and 6.12. A kprobe
/// at the beginning of a function also uses ftrace, except on arm64: there it is a breakpoint (no `HAVE_KPROBES_ON_FTRACE`).
const BY_FTRACE: &[ProgramType] =
    if cfg!(target_arch = "aarch64") { &[ProgramType::Fentry] } else { &[ProgramType::Fentry, ProgramType::Kprobe] };

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
        silences: &[ProgramType::Kprobe],
        fix: "echo 1 > /sys/kernel/debug/kprobes/enabled",
    },
];

impl Switch {
    /// Whether the text of the setting is off. An unreadable setting counts as on.
    pub fn is_off(text: Option<&str>) -> bool {
        text.is_some_and(|text| text.trim() == "0")
    }

    fn is_off_here(&self) -> bool {
        Self::is_off(fs::read_to_string(self.path).ok().as_deref())
    }

    pub(super) fn explain(&self) -> String {
        format!("{} is 0: this kernel attaches it and never calls it ({})", self.name, self.fix)
    }
}

/// Whether this kernel would not call programs of this program type.
pub fn silences(program_type: ProgramType) -> bool {
    off().any(|switch| switch.silences.contains(&program_type))
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
