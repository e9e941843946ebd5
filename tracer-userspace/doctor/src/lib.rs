//! `tracer doctor`: what is wrong with this node's network prerequisites now, and what fixes it.
//!
//! Each check is a file: a reading of the [`View`], and a `judge` that is a plain function of what was read. To add one:
//! its file and a line in [`CHECKS`]. What cannot be read is `unknown`, with the reason; never `ok`.

mod base_policy;
mod br_netfilter;
mod cni;
mod cni_config;
pub mod command;
mod conntrack;
pub mod daemon;
mod default_routes;
mod ephemeral_headroom;
pub mod finding;
mod ip_forward;
mod kubelet_log;
mod listener_overlap;
mod loopback_up;
mod neighbours;
mod port_overlap;
mod port_range;
mod probe_budgets;
mod proxy_mode;
mod reserved;
mod rp_filter;
mod somaxconn;
#[cfg(test)]
mod testing;
mod tracer_hooks;
mod view;

use tracer_node::procfs;

use std::path::PathBuf;
use std::time::Duration;

use tracer_model::event::Pod;
use tracer_sources::{Prober, SourceConfig};

use finding::{Draft, Remediation};
pub use finding::{Finding, Status, Unread};
pub use tracer_hooks::fix as hook_fix;
pub use view::View;

#[derive(Clone, Copy, Debug)]
pub struct Check {
    pub name: &'static str,
    pub why: &'static str,
    /// What it comes to, one finding at least.
    pub run: fn(&View) -> Vec<Finding>,
}

/// All checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    port_overlap::CHECK,
    listener_overlap::CHECK,
    loopback_up::CHECK,
    ip_forward::CHECK,
    br_netfilter::CHECK,
    base_policy::CHECK,
    rp_filter::CHECK,
    default_routes::CHECK,
    conntrack::CHECK,
    neighbours::CHECK,
    somaxconn::CHECK,
    ephemeral_headroom::CHECK,
    cni_config::CHECK,
    proxy_mode::CHECK,
    kubelet_log::CHECK,
    probe_budgets::CHECK,
    tracer_hooks::CHECK,
];

#[derive(Clone, Debug)]
pub struct Options {
    /// Look at the files below this folder, not at this node.
    pub root: Option<PathBuf>,
    /// Names of the checks; empty: all.
    pub checks: Vec<String>,
    /// The pods of this node with their probes, if they are known.
    pub pods: Option<Vec<Pod>>,
    /// Process names of the prober; empty: every known kubelet.
    pub probers: Vec<String>,
    /// BTF of this kernel, where it has none of its own.
    pub btf: Option<PathBuf>,
    /// How long connects are counted, where their rate matters.
    pub window: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let window = Duration::from_secs(1);
        Self { root: None, checks: Vec::new(), pods: None, probers: Vec::new(), btf: None, window }
    }
}

#[must_use]
pub fn run(options: &Options) -> Vec<Finding> {
    let wanted = |check: &&Check| options.checks.is_empty() || options.checks.iter().any(|name| name == check.name);
    let checks: Vec<&Check> = CHECKS.iter().filter(wanted).collect();
    if let Some(root) = &options.root {
        return carry_out(&checks, &View::of_files(root.clone(), options.pods.clone()));
    }
    let probers = probers(options);
    let Some(node) = procfs::node_netns(&probers) else {
        return refuse(
            &checks,
            &Unread::new(
                "cannot read /proc/self/ns/net",
                Remediation::on_node("Mount /proc", "mount -t proc proc /proc"),
            ),
        );
    };
    if !probers.is_empty() && probers.iter().all(|prober| prober.netns.is_none()) {
        let reason = "the prober's network namespace, which is the node's, cannot be read";
        return refuse(&checks, &Unread::lacks(reason, "CAP_SYS_PTRACE"));
    }
    let prober = probers.iter().any(|prober| prober.pid == node.pid);
    let mut view = View::of_node(node.clone(), prober, options.pods.clone(), options.window);
    view.btf.clone_from(&options.btf);
    node.enter(|| carry_out(&checks, &view)).unwrap_or_else(|error| {
        let reason = error.to_string();
        let unread = match error.needs() {
            Some(capability) => Unread::lacks(reason, capability),
            None => Unread::new(reason, "run `tracer doctor` on the node itself"),
        };
        refuse(&checks, &unread)
    })
}

fn probers(options: &Options) -> Vec<Prober> {
    let names = SourceConfig { probers: options.probers.clone(), ..SourceConfig::default() }.prober_names();
    procfs::find_probers(&names)
}

/// This node is looked at, and no prober runs here: its namespace is taken to be our own.
pub fn lacks_prober(options: &Options) -> bool {
    options.root.is_none() && probers(options).is_empty()
}

fn carry_out(checks: &[&Check], view: &View) -> Vec<Finding> {
    checks.iter().flat_map(|check| (check.run)(view)).collect()
}

/// Nothing can be read.
fn refuse(checks: &[&Check], unread: &Unread) -> Vec<Finding> {
    let unknown = |check: &&Check| check.expects("a node that can be read").unknown(unread.clone());
    checks.iter().map(unknown).collect()
}

impl Check {
    /// A finding of this check, before its status is known.
    fn expects(&self, expected: impl Into<String>) -> Draft {
        Draft::new(self.name, self.why, expected)
    }
}

/// The exit code: 1 with a finding as bad as `fail_on`, else 3 if a privilege was missing, else 0.
pub fn exit_code(findings: &[Finding], fail_on: Status) -> u8 {
    let bad = |finding: &Finding| finding.status >= fail_on && finding.status != Status::Unknown;
    if findings.iter().any(bad) {
        1
    } else if findings.iter().any(|finding| finding.needs.is_some()) {
        3
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Tree;
    use super::*;

    fn options(tree: &Tree, checks: &[&str]) -> Options {
        let checks = checks.iter().map(ToString::to_string).collect();
        Options { root: Some(tree.path()), checks, ..Options::default() }
    }

    #[test]
    fn of_an_empty_folder_nothing_is_ok() {
        let tree = Tree::new(&[("etc/hostname", "n1\n")]);
        let findings = run(&options(&tree, &[]));
        let ok: Vec<_> = findings.iter().filter(|it| it.status == Status::Ok).map(|it| &it.check).collect();
        assert!(ok.is_empty(), "{ok:?}");
        let seen: std::collections::BTreeSet<_> = findings.iter().map(|it| it.check.as_str()).collect();
        assert_eq!(seen.len(), CHECKS.len(), "each check says something");
    }

    #[test]
    fn what_is_wrong_has_a_fix_and_what_is_unknown_a_reason() {
        let tree = Tree::new(&[("etc/hostname", "n1\n")]);
        for finding in run(&options(&tree, &[])) {
            assert!(!finding.observed.is_empty() && !finding.why.is_empty() && !finding.expected.is_empty());
            assert!(finding.remediation.is_some(), "{finding:?}");
        }
    }

    #[test]
    fn only_the_checks_that_were_asked_for_run() {
        let tree = Tree::new(&[("proc/sys/net/core/somaxconn", "4096\n")]);
        let findings = run(&options(&tree, &["somaxconn"]));
        assert_eq!(findings.iter().map(|it| it.check.as_str()).collect::<Vec<_>>(), ["somaxconn"]);
    }

    #[test]
    fn the_exit_code_says_the_worst() {
        let of = |status, needs: Option<&str>| {
            let draft = Draft::new("c", "w", "e").ok("o");
            Finding { status, needs: needs.map(str::to_owned), ..draft }
        };
        let ok = of(Status::Ok, None);
        let warn = of(Status::Warn, None);
        let fail = of(Status::Fail, None);
        let denied = of(Status::Unknown, Some("CAP_NET_ADMIN"));
        assert_eq!(exit_code(&[ok.clone(), of(Status::Unknown, None)], Status::Warn), 0);
        assert_eq!(exit_code(&[ok.clone(), warn.clone()], Status::Fail), 0);
        assert_eq!(exit_code(&[ok.clone(), warn], Status::Warn), 1);
        assert_eq!(exit_code(&[fail, denied.clone()], Status::Fail), 1);
        assert_eq!(exit_code(&[ok, denied], Status::Fail), 3);
    }

    #[test]
    fn every_check_is_in_the_documentation() {
        let text = include_str!("../../../docs/doctor.md");
        let missing: Vec<_> = CHECKS.iter().filter(|check| !text.contains(&format!("| `{}` |", check.name))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// Those that are not are a node's files, which are made up as well as any.
    #[test]
    fn checks_are_made_to_fail_for_real() {
        const LIVE: [&str; 2] =
            [include_str!("../../tests/doctor_live.rs"), include_str!("../../tests/firewalls_live.rs")];
        let live = |check: &&Check| LIVE.iter().any(|text| text.contains(&format!("\"{}\"", check.name)));
        let others: Vec<&str> = CHECKS.iter().filter(|check| !live(check)).map(|check| check.name).collect();
        assert_eq!(others, ["neighbours", "cni_config", "kubelet_log", "probe_budgets"]);
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), CHECKS.len());
    }
}
