//! How often the programs ran and how long that took, by hook: counted by the kernel while
//! `kernel.bpf_stats_enabled` is 1 or somebody asks for it (BPF_ENABLE_STATS), for two clock readings a run; else not at all.

use std::{collections::BTreeMap, io, os::fd::OwnedFd};

use aya::sys::{Stats, enable_stats};
use tracer_common::names::Hook;

use super::{Loaded, hooks::HOOKS};

/// While it lives the kernel counts: the descriptor ends with its process, whatever ends that.
#[derive(Debug)]
pub struct Counting(#[expect(dead_code, reason = "held")] OwnedFd);

/// Has the kernel count, of all programs on this node (5.8).
///
/// # Errors
/// It does not: CAP_SYS_ADMIN is missing, as a rule.
pub fn count_runs() -> io::Result<Counting> {
    enable_stats(Stats::RunTime).map(Counting).map_err(|error| error.io_error)
}

/// Runs, and seconds in them, of each hook's programs. Empty where the kernel does not, and did not, count.
pub(super) fn by_hook(loaded: &Loaded) -> BTreeMap<Hook, (u64, f64)> {
    let mut all = BTreeMap::new();
    for (program, info) in loaded.program_infos() {
        let Some(hook) = hook_of(program) else { continue };
        let (runs, seconds): &mut (u64, f64) = all.entry(hook).or_default();
        *runs += info.run_count();
        *seconds += info.run_time().as_secs_f64();
    }
    if all.values().all(|(runs, _)| *runs == 0) { BTreeMap::new() } else { all }
}

/// The hook with this program in its table row, or with the one that it stands in for.
pub(super) fn hook_of(program: &str) -> Option<Hook> {
    let program = program.strip_suffix("_again").unwrap_or(program);
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
