//! How patient to be, and how the helpers are started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::helper::{Programs, Role};
use super::net::Netns;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the prober's process.
    pub prober: String,
    /// Where the helpers' programs are.
    pub programs: Programs,
    /// For files.
    pub scratch: PathBuf,
    /// Timeout of a probe.
    pub probe_timeout: Duration,
    /// How long to wait for something that must come.
    pub patience: Duration,
    /// How long after the last attempt to wait for a verdict.
    pub verdict_patience: Duration,
    /// Connections of the healthy crowd.
    pub crowd: u32,
    /// A verdict must mention what it should, such as the rule that dropped. It waits a second for the rules to be read,
    /// which an emulated or a very busy processor may exceed: there it may come without their names.
    pub names: bool,
}

impl Options {
    /// Fit for this machine: an emulated one gets several times the patience.
    pub fn detect(programs: Programs) -> Self {
        let slow = is_emulated();
        Self {
            prober: "kubelet".to_owned(),
            programs,
            scratch: scratch_dir(),
            probe_timeout: Duration::from_millis(if slow { 4000 } else { 1080 }),
            patience: Duration::from_secs(if slow { 90 } else { 30 }),
            verdict_patience: Duration::from_secs(15),
            crowd: if slow { 1000 } else { 10_000 },
            names: !slow,
        }
    }

    /// The same with a prober that is called like no other: several runs on one machine must not take each other's
    /// kubelet for theirs.
    pub fn with_own_prober(self) -> Self {
        Self { prober: format!("kubelet-{}", std::process::id()), ..self }
    }

    /// A helper that is to run in this namespace.
    pub fn helper(&self, ns: &Netns, role: Role) -> Result<Command> {
        let words = self.words(role)?;
        let mut command = ns.command(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    /// Its command line.
    pub fn words(&self, role: Role) -> Result<Vec<OsString>> {
        let comm = if role == Role::Kubelet { &self.prober } else { role.name() };
        self.programs.words(role, comm, &self.scratch)
    }
}

/// Whether the processor is QEMU's software emulation.
pub fn is_emulated() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|cpus| is_qemu(&cpus))
}

/// arm64 names no model; there QEMU's `max` has the implementer 0, which no real processor has (`MIDR_EL1`).
fn is_qemu(cpus: &str) -> bool {
    let nobodys = |line: &str| line.starts_with("CPU implementer") && line.ends_with(": 0x00");
    cpus.contains("QEMU") || cpus.lines().any(nobodys)
}

/// The kernel release.
pub fn kernel() -> String {
    std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default().trim().to_owned()
}

fn scratch_dir() -> PathBuf {
    std::env::temp_dir().join(format!("trw-{}", std::process::id()))
}

/// A directory that is gone at the end.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it.
    pub fn new() -> Result<Self> {
        let dir = scratch_dir();
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_processor_is_reported_on_both_architectures() {
        assert!(is_qemu("model name\t: QEMU Virtual CPU version 2.5+\n"));
        assert!(is_qemu("processor\t: 0\nCPU implementer\t: 0x00\nCPU architecture: 8\n"));
        assert!(!is_qemu("model name\t: AMD EPYC\n") && !is_qemu("CPU implementer\t: 0x41\nCPU revision\t: 0x00\n"));
    }
}
