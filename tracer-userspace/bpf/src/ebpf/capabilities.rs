//! The capabilities of this process, to report a missing one.

/// A capability by its number (linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    NetAdmin = 12,
    SysAdmin = 21,
    Perfmon = 38,
    Bpf = 39,
}

impl Capability {
    const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    const fn is_in(self, mask: u64) -> bool {
        mask >> (self as u32) & 1 == 1
    }
}

pub(super) fn has(capability: Capability) -> bool {
    capability.is_in(effective())
}

/// The names of those that this process lacks.
pub fn missing(wanted: &[Capability]) -> Vec<&'static str> {
    names_outside(effective(), wanted)
}

fn names_outside(mask: u64, wanted: &[Capability]) -> Vec<&'static str> {
    wanted.iter().filter(|it| !it.is_in(mask)).map(|it| it.name()).collect()
}

/// The text about missing capabilities for tracing programs.
pub(super) fn missing_for_tracing() -> String {
    lacking(effective(), &[Capability::Bpf, Capability::Perfmon])
}

/// CAP_SYS_ADMIN includes all of them (`bpf_capable`, `perfmon_capable`, include/linux/capability.h, 5.8).
fn lacking(mask: u64, wanted: &[Capability]) -> String {
    let has_all = Capability::SysAdmin.is_in(mask);
    let missing = if has_all { Vec::new() } else { names_outside(mask, wanted) };
    match missing.as_slice() {
        [] => "no capability is missing, so the reason may be a user namespace (rootless container), kernel lockdown, a security \
               module or a seccomp filter"
            .to_owned(),
        [only] => format!("{only} (or CAP_SYS_ADMIN) is missing: run it as root, or with that capability"),
        all => {
            format!("{} (or CAP_SYS_ADMIN) are missing: run it as root, or with these capabilities", all.join(" and "))
        }
    }
}

/// `CapEff` of proc(5).
fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_capabilities_are_named() {
        let wanted = [Capability::Bpf, Capability::Perfmon];
        let words = |mask| lacking(mask, &wanted);
        assert!(words(0).starts_with("CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN) are missing"));
        assert!(words(1 << 39).starts_with("CAP_PERFMON (or CAP_SYS_ADMIN) is missing"));
        assert!(words(1 << 38).starts_with("CAP_BPF (or"));
        assert!(words(1 << 21).starts_with("no capability is missing"));
        assert_eq!(names_outside(1 << 21, &[Capability::SysAdmin, Capability::NetAdmin]), ["CAP_NET_ADMIN"]);
    }
}
