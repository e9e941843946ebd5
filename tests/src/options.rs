//! How patient to be, and where the programs are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the prober's process.
    pub prober: String,
    /// Where `kubelet`, `pod`, `loopback`, `crio` and `load` are.
    pub bin_dir: PathBuf,
    /// Timeout of a probe.
    pub probe_timeout: Duration,
    /// How long to wait for something that must come.
    pub patience: Duration,
    /// How long after the last attempt to wait for a verdict.
    pub verdict_patience: Duration,
    /// Connections of the healthy crowd.
    pub crowd: u32,
}

impl Options {
    /// Fit for this machine: an emulated one gets several times the patience.
    pub fn detect() -> Result<Self> {
        let slow = is_emulated();
        Ok(Self {
            prober: "kubelet".to_owned(),
            bin_dir: bin_dir()?,
            probe_timeout: Duration::from_millis(if slow { 4000 } else { 1300 }),
            patience: Duration::from_secs(if slow { 90 } else { 10 }),
            verdict_patience: Duration::from_secs(if slow { 15 } else { 3 }),
            crowd: if slow { 1000 } else { 10_000 },
        })
    }

    /// The same with a prober that is called like no other: several runs on one machine must not take each other's
    /// kubelet for theirs.
    pub fn with_own_prober(self) -> Self {
        Self { prober: format!("kubelet-{}", std::process::id()), ..self }
    }

    /// The prober's program, under its name.
    pub fn prober_program(&self) -> Result<PathBuf> {
        let program = self.bin("kubelet");
        if self.prober == "kubelet" {
            return Ok(program);
        }
        let link = scratch_dir().join(&self.prober);
        if !link.is_symlink() {
            std::fs::create_dir_all(scratch_dir())?;
            std::os::unix::fs::symlink(&program, &link).with_context(|| format!("make {}", link.display()))?;
        }
        Ok(link)
    }

    /// Path of one of this package's programs.
    #[must_use]
    pub fn bin(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }
}

/// The directory of this program; one up for a test binary in `deps`.
fn bin_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("path of this program")?;
    let dir = exe.parent().context("directory of this program")?;
    let up = dir.parent().filter(|_| dir.ends_with("deps"));
    Ok(up.unwrap_or(dir).to_path_buf())
}

/// Whether the processor is QEMU's software emulation.
#[must_use]
pub fn is_emulated() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|cpu| cpu.contains("QEMU"))
}

/// The kernel release.
#[must_use]
pub fn kernel() -> String {
    std::fs::read_to_string(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default().trim().to_owned()
}

/// CLOCK_BOOTTIME now.
pub fn boot_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    Ok(now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
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
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
