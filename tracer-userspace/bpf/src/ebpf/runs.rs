//! How often the programs of each hook ran, and for how long. The kernel counts only while `kernel.bpf_stats_enabled` is 1 or a
//! process holds a descriptor of BPF_ENABLE_STATS. Counting costs two clock readings a run.

use std::collections::BTreeMap;

use tracer_common::names::Hook;

use super::{Loaded, hooks::HOOKS};

impl Loaded {
    /// Runs of each hook's programs and the seconds they took; empty if the kernel has never counted them.
    pub fn program_runs(&self) -> BTreeMap<Hook, (u64, f64)> {
        let mut all = BTreeMap::new();
        for (program, info) in self.program_infos() {
            let Some(hook) = hook_of(program) else { continue };
            let (runs, seconds): &mut (u64, f64) = all.entry(hook).or_default();
            *runs += info.run_count();
            *seconds += info.run_time().as_secs_f64();
        }
        if all.values().all(|(runs, _)| *runs == 0) { BTreeMap::new() } else { all }
    }
}

/// The hook of this program. A second program (`_again`) belongs to the hook of the first one.
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
