//! `tracer doctor`: what is wrong with this node's network prerequisites now, and what fixes it.
//!
//! Each check is a file. It reads the [`View`], and its `judge` is a plain function of what was read. To add a check, add
//! its file and a line in [`CHECKS`]. If the check cannot read something, its finding is `unknown` with the reason, never
//! `ok`.

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
mod sockets;
mod somaxconn;
#[cfg(test)]
mod testing;
mod tracer_hooks;
mod view;

use tracer_node::procfs;

use std::path::PathBuf;
use std::time::Duration;

use tracer_model::event::{KNOWN_PROBERS, Pod};
use tracer_sources::{Prober, SourceConfig};

use finding::{Draft, Remediation};
pub use finding::{Finding, Status, Unread};
pub use view::View;

#[derive(Clone, Copy, Debug)]
pub struct Check {
    pub name: &'static str,
    why: &'static str,
    /// The words about what is right.
    expected: fn() -> String,
    /// Returns at least one finding, or what it could not read.
    run: fn(&View) -> Result<Vec<Finding>, Unread>,
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
    /// Read the files below this folder instead of this node.
    pub root: Option<PathBuf>,
    /// Names of the checks to run; empty: all.
    pub checks: Vec<String>,
    /// The pods of this node with their probes, if they are known.
    pub pods: Option<Vec<Pod>>,
    /// Process names of the prober; empty: every known kubelet.
    pub probers: Vec<String>,
    /// BTF of this kernel, where it has none of its own.
    pub btf: Option<PathBuf>,
    /// For how long a check counts connects to compute their rate.
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
        return run_checks(&checks, &View::of_files(root.clone(), options.clone()));
    }
    let probers = probers(options);
    let Some(node) = procfs::node_netns(&probers) else {
        let fix = Remediation::on_node("Mount /proc", "mount -t proc proc /proc");
        return all_unknown(&checks, &Unread::new("cannot read /proc/self/ns/net", fix));
    };
    if !probers.is_empty() && probers.iter().all(|prober| prober.netns.is_none()) {
        let reason = "the prober's network namespace, which is the node's, cannot be read";
        return all_unknown(&checks, &Unread::lacks(reason, "CAP_SYS_PTRACE"));
    }
    let prober = probers.iter().any(|prober| prober.pid == node.pid);
    let view = View::of_node(node.clone(), prober, options.clone());
    node.enter(|| run_checks(&checks, &view)).unwrap_or_else(|error| {
        let fix = "run `tracer doctor` on the node itself";
        all_unknown(&checks, &Unread::for_lack_of(error.needs(), error.to_string(), fix))
    })
}

fn probers(options: &Options) -> Vec<Prober> {
    let names = SourceConfig { probers: options.probers.clone(), ..SourceConfig::default() }.prober_names();
    procfs::find_probers(&names)
}

/// What does not run on this node. The checks then read tracer's own network namespace.
pub fn lacking_prober(options: &Options) -> Option<String> {
    (options.root.is_none() && probers(options).is_empty()).then(|| no_prober(&options.probers))
}

fn no_prober(names: &[String]) -> String {
    if names.is_empty() || names == KNOWN_PROBERS {
        "no kubelet runs here".to_owned()
    } else {
        format!("no process named {} runs here", names.join(", "))
    }
}

fn run_checks(checks: &[&Check], view: &View) -> Vec<Finding> {
    checks.iter().flat_map(|check| check.findings(view)).collect()
}

/// The findings where the node cannot be read at all.
fn all_unknown(checks: &[&Check], unread: &Unread) -> Vec<Finding> {
    let unknown = |check: &&Check| check.expects("a node that can be read").unknown(unread.clone());
    checks.iter().map(unknown).collect()
}

impl Check {
    fn findings(&self, view: &View) -> Vec<Finding> {
        (self.run)(view).unwrap_or_else(|unread| vec![self.draft().unknown(unread)])
    }

    /// Starts a finding of this check, before its status is known.
    fn draft(&self) -> Draft {
        self.expects((self.expected)())
    }

    /// The same with other words about what is right.
    fn expects(&self, expected: impl Into<String>) -> Draft {
        Draft::new(self.name, self.why, expected)
    }
}

/// Returns 1 if a finding is at least as bad as `fail_on`, else 3 if a privilege was missing, else 0.
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
    fn in_an_empty_folder_each_check_is_not_ok_and_has_all_texts_and_a_fix() {
        let tree = Tree::new(&[("etc/hostname", "n1\n")]);
        let findings = run(&options(&tree, &[]));
        for finding in &findings {
            assert_ne!(finding.status, Status::Ok, "{finding:?}");
            assert!(!finding.observed.is_empty() && !finding.why.is_empty() && !finding.expected.is_empty());
            assert!(finding.remediation.is_some(), "{finding:?}");
        }
        let checked: std::collections::BTreeSet<_> = findings.iter().map(|it| it.check.as_str()).collect();
        assert_eq!(checked.len(), CHECKS.len(), "each check has a name of its own, and a finding");
    }

    #[test]
    fn only_the_named_checks_run() {
        let tree = Tree::new(&[("proc/sys/net/core/somaxconn", "4096\n")]);
        let findings = run(&options(&tree, &["somaxconn"]));
        assert_eq!(findings.iter().map(|it| it.check.as_str()).collect::<Vec<_>>(), ["somaxconn"]);
    }

    #[test]
    fn the_exit_code_follows_the_worst_finding() {
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

    /// The checks without a live test read only files of the node, which a unit test can write as well.
    #[test]
    fn each_check_of_kernel_state_has_a_live_test() {
        const LIVE: [&str; 2] =
            [include_str!("../../tests/doctor_live.rs"), include_str!("../../tests/firewalls_live.rs")];
        let live = |check: &&Check| LIVE.iter().any(|text| text.contains(&format!("\"{}\"", check.name)));
        let others: Vec<&str> = CHECKS.iter().filter(|check| !live(check)).map(|check| check.name).collect();
        assert_eq!(others, ["neighbours", "cni_config", "kubelet_log", "probe_budgets"]);
    }
}
