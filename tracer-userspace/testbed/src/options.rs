//! The settings of a run: timeouts, names, and how helpers are started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::helper::{Programs, Role};
use super::net::Netns;

#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the prober's process.
    pub prober: String,
    pub programs: Programs,
    /// Directory for temporary files.
    pub scratch: PathBuf,
    pub probe_timeout: Duration,
    /// How long to wait for something that must happen.
    pub patience: Duration,
    /// How long to wait for a verdict after the last attempt.
    pub verdict_patience: Duration,
    /// `--btf` of the tracer.
    pub btf: Option<PathBuf>,
    /// Connections of the healthy crowd.
    pub crowd: u32,
    /// Whether summaries must mention names, such as that of the rule that dropped. A verdict waits one second for the
    /// rules. An emulated or very busy CPU may need longer, and then the names are missing.
    pub names: bool,
    /// Whether to run the commands of a verdict that change the node. The attempt must succeed after them. They need
    /// programs such as `ip`.
    pub fixes: bool,
}

impl Options {
    /// Options for this machine. An emulated one gets longer timeouts.
    pub fn detect(programs: Programs) -> Self {
        let slow = is_emulated();
        Self {
            prober: "kubelet".to_owned(),
            programs,
            scratch: scratch_dir(),
            probe_timeout: Duration::from_millis(if slow { 4000 } else { 1080 }),
            patience: Duration::from_secs(if slow { 90 } else { 30 }),
            verdict_patience: Duration::from_secs(15),
            btf: None,
            crowd: if slow { 1000 } else { 10_000 },
            names: !slow,
            fixes: !slow,
        }
    }

    /// Gives the prober a unique name, so that several runs on one machine do not track each other's prober.
    pub fn with_own_prober(self) -> Self {
        Self { prober: format!("kubelet-{}", std::process::id()), ..self }
    }

    /// The kubelet's log, of a tracer that reads one.
    pub fn kubelet_log(&self) -> PathBuf {
        self.scratch.join("kubelet.log")
    }

    /// The command of a helper in this namespace.
    pub fn helper(&self, ns: &Netns, role: Role) -> Result<Command> {
        let words = self.words(role)?;
        let mut command = ns.command(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    /// The command line of a helper.
    pub fn words(&self, role: Role) -> Result<Vec<OsString>> {
        let comm = if role == Role::Kubelet { &self.prober } else { role.name() };
        self.programs.words(role, comm, &self.scratch)
    }
}

/// Whether QEMU emulates the CPU in software.
pub fn is_emulated() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|cpus| is_qemu(&cpus))
}

/// arm64 has no model name. There, QEMU's `max` has implementer 0, which no real CPU has (`MIDR_EL1`).
fn is_qemu(cpus: &str) -> bool {
    let is_implementer_0 = |line: &str| line.starts_with("CPU implementer") && line.ends_with(": 0x00");
    cpus.contains("QEMU") || cpus.lines().any(is_implementer_0)
}

/// The kernel release.
pub fn kernel() -> String {
    std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default().trim().to_owned()
}

fn scratch_dir() -> PathBuf {
    std::env::temp_dir().join(format!("trw-{}", std::process::id()))
}

/// A temporary directory; removed on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Result<Self> {
        let dir = scratch_dir();
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

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
    fn an_emulated_cpu_is_recognized_on_both_architectures() {
        assert!(is_qemu("model name\t: QEMU Virtual CPU version 2.5+\n"));
        assert!(is_qemu("processor\t: 0\nCPU implementer\t: 0x00\nCPU architecture: 8\n"));
        assert!(!is_qemu("model name\t: AMD EPYC\n") && !is_qemu("CPU implementer\t: 0x41\nCPU revision\t: 0x00\n"));
    }
}
