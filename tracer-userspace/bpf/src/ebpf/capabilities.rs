//! The capabilities of this process, to report a missing one.

pub use rustix::thread::CapabilitySet;

pub(super) fn has(capability: CapabilitySet) -> bool {
    effective().contains(capability)
}

/// The names of those that this process lacks.
pub fn missing(wanted: &[CapabilitySet]) -> Vec<String> {
    names_outside(effective(), wanted)
}

fn names_outside(own: CapabilitySet, wanted: &[CapabilitySet]) -> Vec<String> {
    let lacking = wanted.iter().filter(|it| !own.contains(**it));
    lacking.flat_map(CapabilitySet::iter_names).map(|(name, _)| format!("CAP_{name}")).collect()
}

/// The text about missing capabilities for tracing programs.
pub(super) fn missing_for_tracing() -> String {
    lacking(effective(), &[CapabilitySet::BPF, CapabilitySet::PERFMON])
}

/// CAP_SYS_ADMIN includes all of them (`bpf_capable`, `perfmon_capable`, include/linux/capability.h, 5.8).
fn lacking(own: CapabilitySet, wanted: &[CapabilitySet]) -> String {
    let has_all = own.contains(CapabilitySet::SYS_ADMIN);
    let missing = if has_all { Vec::new() } else { names_outside(own, wanted) };
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

fn effective() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_capabilities_are_named() {
        let wanted = [CapabilitySet::BPF, CapabilitySet::PERFMON];
        let words = |own| lacking(own, &wanted);
        assert!(words(CapabilitySet::empty()).starts_with("CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN) are missing"));
        assert!(words(CapabilitySet::BPF).starts_with("CAP_PERFMON (or CAP_SYS_ADMIN) is missing"));
        assert!(words(CapabilitySet::PERFMON).starts_with("CAP_BPF (or"));
        assert!(words(CapabilitySet::SYS_ADMIN).starts_with("no capability is missing"));
        let both = [CapabilitySet::SYS_ADMIN, CapabilitySet::NET_ADMIN];
        assert_eq!(names_outside(CapabilitySet::SYS_ADMIN, &both), ["CAP_NET_ADMIN"]);
    }
}
