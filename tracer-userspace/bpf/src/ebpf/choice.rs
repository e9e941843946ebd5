//! Chooses whether probers are watched at their own cgroups.
//!
//! By itself tracer does this only where it loses nothing: each prober runs already, in a cgroup that holds nothing else. A kubelet
//! that restarts does not dial before its new cgroup is watched. A process that `--prober` names may do so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
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
            Err("a process that --prober names may dial as soon as it begins".to_owned())
        }
        ProberHooksWhen::Auto => each_has_own_cgroup(&options.probers),
    };
    let used = chosen.is_ok();
    ProberHooks { used, reason: chosen.unwrap_or_else(|reason| reason) }
}

/// Whether each prober that runs has a cgroup of its own; the reason in both cases.
fn each_has_own_cgroup(names: &[String]) -> Result<String, String> {
    let probers = find_probers(names);
    let pids: BTreeSet<u32> = probers.iter().map(|prober| prober.pid).collect();
    let own = probers.iter().map(|prober| {
        let name = format!("{} (pid {})", prober.comm, prober.pid);
        let text = fs::read_to_string(format!("/proc/{}/cgroup", prober.pid)).unwrap_or_default();
        let folder = cgroup::of_process(prober.pid);
        own_cgroup(&text, folder, &pids).map_err(|reason| format!("{name}: {reason}"))
    });
    let folders = own.collect::<Result<BTreeSet<PathBuf>, String>>()?;
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    if names.is_empty() { Err(NO_PROBER.to_owned()) } else { Ok(format!("only probers are in {}", names.join(", "))) }
}

pub(super) const NO_PROBER: &str = "no prober runs yet";

/// The cgroup of a prober, if only probers are in it; else the reason. `text` is that of `/proc/PID/cgroup`.
fn own_cgroup(text: &str, folder: io::Result<Option<PathBuf>>, probers: &BTreeSet<u32>) -> Result<PathBuf, String> {
    // Before 5.15 the kernel then takes a socket for one of the root cgroup (`cgroup_sk_alloc_disable`).
    if has_socket_controller(text) {
        return Err("net_cls or net_prio of cgroup version 1 is in use".to_owned());
    }
    let folder = folder.map_err(|error| error.to_string())?.ok_or(cgroup::IN_ROOT)?;
    let others = others(&folder, probers).map_err(|error| format!("{}: {error}", folder.display()))?;
    match others.first() {
        Some(other) => Err(format!("its cgroup {} also has {other}", folder.display())),
        None => Ok(folder),
    }
}

/// The processes of a cgroup that are no probers, and the cgroups below it.
fn others(folder: &Path, probers: &BTreeSet<u32>) -> io::Result<Vec<String>> {
    let is_prober = |pid: &str| pid.parse().is_ok_and(|pid| probers.contains(&pid));
    let text = fs::read_to_string(folder.join("cgroup.procs"))?;
    let processes = text.lines().filter(|pid| !is_prober(pid)).map(|pid| format!("process {pid}"));
    let below = fs::read_dir(folder)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let below = below.map(|entry| format!("the cgroup {}", entry.file_name().display()));
    Ok(processes.chain(below).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::Scratch;

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
    fn only_a_cgroup_without_others_is_a_probers_own() {
        let scratch = Scratch::new();
        let probers = BTreeSet::from([7, 9]);
        let of = |processes: &str| {
            fs::write(scratch.path("cgroup.procs"), processes).expect("written");
            own_cgroup(UNIFIED, Ok(Some(scratch.root().to_owned())), &probers)
        };
        assert_eq!(of("7\n").as_deref(), Ok(scratch.root()));
        assert_eq!(of("7\n9\n").as_deref(), Ok(scratch.root()), "two probers");
        assert!(of("7\n8\n").expect_err("a runtime").ends_with("also has process 8"));
        assert!(of("7\n0\n").expect_err("a process of another namespace").ends_with("also has process 0"));
        fs::create_dir(scratch.path("pods")).expect("a folder");
        assert!(of("7\n").expect_err("a cgroup below").ends_with("also has the cgroup pods"));
    }

    #[test]
    fn the_root_version_1_and_an_unknown_cgroup_are_nobodys_own() {
        let none = BTreeSet::new();
        let root = own_cgroup("0::/\n", Ok(None), &none);
        assert_eq!(root.expect_err("the root"), cgroup::IN_ROOT);
        let unknown = own_cgroup("9:cpu:/kubelet\n", Err(io::Error::other("in no hierarchy")), &none);
        assert_eq!(unknown.expect_err("version 1 alone"), "in no hierarchy");
        let hybrid = own_cgroup(&format!("5:net_cls,net_prio:/\n{UNIFIED}"), Ok(Some("/x".into())), &none);
        assert!(hybrid.expect_err("a hybrid").contains("net_cls"));
    }
}
