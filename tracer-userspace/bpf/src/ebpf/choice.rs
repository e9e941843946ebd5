//! Chooses whether probers are watched at their own cgroups.
//!
//! By itself tracer does this only where it loses nothing: each prober runs already, in a cgroup below the root. A kubelet that
//! restarts does not connect before its new cgroup is watched. A process that `--prober` names may do so.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{fs, io};

use tracer_model::event::ProberHooks;
use tracer_node::cgroups::has_socket_controller;
use tracer_node::procfs::find_probers;

use super::{LoadOptions, cgroup};

/// When to watch probers at their own cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProberHooksWhen {
    Auto,
    Always,
    #[default]
    Never,
}

/// The choice for these options, before anything is attached.
pub(super) fn choose(options: &LoadOptions) -> ProberHooks {
    let chosen = match options.prober_hooks {
        ProberHooksWhen::Never => Err("--prober-hooks=never".to_owned()),
        _ if options.all_connections => Err("--all-connections watches every process".to_owned()),
        ProberHooksWhen::Always => Ok("--prober-hooks=always".to_owned()),
        ProberHooksWhen::Auto if options.probers_are_named => {
            Err("a process that --prober names may connect as soon as it starts".to_owned())
        }
        ProberHooksWhen::Auto => each_has_cgroup(&options.probers),
    };
    let used = chosen.is_ok();
    ProberHooks { used, reason: chosen.unwrap_or_else(|reason| reason) }
}

/// Whether the cgroup of each prober that runs can be watched; the reason in both cases. Others may share it: the program
/// goes by the name.
fn each_has_cgroup(names: &[String]) -> Result<String, String> {
    let found = find_probers(names).into_iter().map(|prober| {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", prober.pid)).unwrap_or_default();
        let folder = watchable(&text, cgroup::of_process(prober.pid));
        folder.map_err(|reason| format!("{} (pid {}): {reason}", prober.comm, prober.pid))
    });
    let folders = found.collect::<Result<BTreeSet<PathBuf>, String>>()?;
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    if names.is_empty() { Err(NO_PROBER.to_owned()) } else { Ok(format!("probers are in {}", names.join(", "))) }
}

pub(super) const NO_PROBER: &str = "no prober runs yet";

/// The cgroup of a prober, if a program there sees all of its connections; else the reason. `text` is that of
/// `/proc/PID/cgroup`.
fn watchable(text: &str, folder: io::Result<Option<PathBuf>>) -> Result<PathBuf, String> {
    // Before 5.15 the kernel then takes a socket for one of the root cgroup (`cgroup_sk_alloc_disable`).
    if has_socket_controller(text) {
        return Err("net_cls or net_prio of cgroup version 1 is in use".to_owned());
    }
    folder.map_err(|error| error.to_string())?.ok_or_else(|| cgroup::IN_ROOT.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "0::/system.slice/kubelet.service\n";

    fn options(prober_hooks: ProberHooksWhen) -> LoadOptions {
        // No process has this name.
        LoadOptions { prober_hooks, probers: vec!["no such process".into()], ..LoadOptions::default() }
    }

    fn chosen(options: &LoadOptions) -> (bool, String) {
        let ProberHooks { used, reason } = choose(options);
        (used, reason)
    }

    #[test]
    fn what_is_asked_for_needs_no_prober() {
        assert!(chosen(&options(ProberHooksWhen::Always)).0);
        for when in [ProberHooksWhen::Always, ProberHooksWhen::Auto] {
            let (used, reason) = chosen(&LoadOptions { all_connections: true, ..options(when) });
            assert!(!used && reason.contains("--all-connections"), "{reason}");
        }
        assert_eq!(chosen(&options(ProberHooksWhen::Never)), (false, "--prober-hooks=never".into()));
    }

    #[test]
    fn tracer_does_not_choose_them_without_a_prober_or_for_named_ones() {
        let auto = options(ProberHooksWhen::Auto);
        let (used, reason) = chosen(&auto);
        assert!(!used && reason == NO_PROBER, "{reason}");
        let (used, reason) = chosen(&LoadOptions { probers_are_named: true, ..auto });
        assert!(!used && reason.contains("--prober names"), "{reason}");
    }

    #[test]
    fn a_program_sees_no_prober_in_the_root_or_an_unknown_cgroup_or_with_version_1() {
        assert_eq!(watchable(UNIFIED, Ok(Some("/x".into()))), Ok("/x".into()));
        assert_eq!(watchable("0::/\n", Ok(None)).expect_err("the root"), cgroup::IN_ROOT);
        let unknown = watchable("9:cpu:/kubelet\n", Err(io::Error::other("in no hierarchy")));
        assert_eq!(unknown.expect_err("version 1 alone"), "in no hierarchy");
        let hybrid = watchable(&format!("5:net_cls,net_prio:/\n{UNIFIED}"), Ok(Some("/x".into())));
        assert!(hybrid.expect_err("a hybrid").contains("net_cls"));
    }
}
