//! Checks that this kernel and these privileges allow a selftest, before the first row.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use super::helper::ITSELF;
use super::net::die_with_parent;
use super::node::TestNode;
use super::options::Options;
use super::watcher::{flag, without_settings};
use tracer_bpf::ebpf::capabilities::{self, CapabilitySet};
use tracer_terminal::error::{Error, os_message};

/// What the scenarios need. The tracer reports by itself what it needs.
const NEEDED: [CapabilitySet; 2] = [CapabilitySet::SYS_ADMIN, CapabilitySet::NET_ADMIN];

/// Fails if this process lacks a capability, or a file that its children need.
pub(super) fn check_capabilities() -> Result<(), Error> {
    for path in ["/proc/self/status", "/dev/null"] {
        let needs = |error| Error::Kernel(format!("selftest needs {path}: {}", os_message(&error)));
        fs::read_to_string(path).map_err(needs)?;
    }
    let missing = capabilities::missing(&NEEDED);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Kernel(format!("selftest makes network namespaces: {} missing (run it as root)", missing.join(", "))))
}

/// Fails if no node with a pod can be made here, or the tracer cannot attach.
pub(super) fn check_node_and_tracer(options: &Options) -> Result<(), Error> {
    let node = TestNode::new("first").and_then(|mut node| node.pod().map(drop));
    node.map_err(|error| Error::Kernel(format!("no node can be made of network namespaces here: {error:#}")))?;
    attach(options)
}

fn attach(options: &Options) -> Result<(), Error> {
    let mut command = Command::new(options.programs.tracer());
    command.arg0("tracer").args(["attach", "-o", "json", "--duration", "1ms", "--prober", &options.prober]);
    command.args(flag("--btf", options.btf.as_deref()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    die_with_parent(without_settings(&mut command));
    let output = command.output().map_err(|error| Error::file("selftest", ITSELF, error))?;
    if output.status.success() {
        return Ok(());
    }
    let reported = String::from_utf8_lossy(&output.stderr);
    let last = reported.lines().last().unwrap_or_default();
    Err(Error::Kernel(last.strip_prefix("tracer: error: ").unwrap_or(last).to_owned()))
}
