//! How often the programs ran and how long that took, by hook: counted by the kernel while
//! `kernel.bpf_stats_enabled` is 1 (two clock readings for each run), else not at all.

use std::collections::BTreeMap;

use tracer_common::names::Hook;

use super::{Loaded, hooks::HOOKS};

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Runs, and seconds in them, of each hook's programs. Empty where the kernel does not count.
pub(super) fn by_hook(loaded: &Loaded) -> BTreeMap<Hook, (u64, f64)> {
    let mut all = BTreeMap::new();
    if !std::fs::read_to_string(SWITCH).is_ok_and(|text| text.trim() == "1") {
        return all;
    }
    for (program, info) in loaded.program_infos() {
        let Some(hook) = hook_of(program) else { continue };
        let (runs, seconds): &mut (u64, f64) = all.entry(hook).or_default();
        *runs += info.run_count();
        *seconds += info.run_time().as_secs_f64();
    }
    all
}

/// The hook whose table row has this program.
fn hook_of(program: &str) -> Option<Hook> {
    let has = |row: &&super::hooks::Row| {
        row.variants.iter().flat_map(|variant| variant.programs).any(|(name, _)| *name == program)
    };
    HOOKS.iter().find(has).map(|row| row.hook)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_belongs_to_its_hook() {
        assert_eq!(hook_of("fexit_sys_connect"), Some(Hook::SysConnect));
        assert_eq!(hook_of("inet_sock_set_state"), Some(Hook::InetSockSetState));
        assert_eq!(hook_of("nothing"), None);
    }
}
