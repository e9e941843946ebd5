//! Boots virtual machines with virtme-ng. It starts QEMU, and the guest uses this machine's file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::kernels::Kernel;
use crate::sh;

/// The version for these arguments.
const VERSION: &str = "1.42";

/// The directory of its programs. Installs them if necessary.
pub(crate) fn ensure() -> Result<PathBuf> {
    let place = sh::target().join("vm");
    fs::create_dir_all(&place)?;
    let lock = File::create(place.join("venv.lock"))?;
    lock.lock().context("cannot lock the Python environment")?;
    let venv = place.join("venv");
    let stamp = venv.join(format!("virtme-ng-{VERSION}"));
    if !stamp.is_file() {
        sh::step(&format!("installing virtme-ng {VERSION}"), || install(&venv))?;
        fs::write(&stamp, "")?;
    }
    Ok(venv.join("bin"))
}

fn install(venv: &Path) -> Result<()> {
    sh::capture(sh::command("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    sh::capture(sh::command(venv.join("bin/python")).args(pip).arg(format!("virtme-ng=={VERSION}"))).map(drop)
}

/// Boots a kernel that runs a script. The guest can write only to `shared`.
pub(crate) fn boot(
    kernel: &Kernel,
    parameters: &[&str],
    script: &Path,
    shared: &Path,
    console: File,
) -> Result<Machine> {
    let bin = ensure()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin.clone()).chain(std::env::split_paths(&path)))?;
    let mut vng = Command::new(bin.join("vng"));
    vng.current_dir(sh::root()).env("PATH", path).stdin(Stdio::null());
    vng.stderr(console.try_clone()?).stdout(console);
    // Without udev the guest needs the console to start the script, and only `--verbose` gives it one.
    vng.args(["--verbose", "--disable-kvm", "--force-9p", "--user", "root", "--cpus", "2", "--memory", "2G"]);
    parameters.iter().for_each(|it| _ = vng.arg(format!("--append={it}")));
    vng.arg("--run").arg(&kernel.image).arg(format!("--rwdir={}", shared.display()));
    vng.arg("--").arg(format!("bash {}", sh::quoted(&script.display().to_string())));
    Ok(Machine { vng: vng.spawn().context("cannot start vng")? })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    ByItself,
    /// It was killed at its time limit.
    Late,
    /// It was killed because it hung.
    GivenUp,
}

/// A running machine. It is killed when this is dropped.
pub(crate) struct Machine {
    vng: Child,
}

impl Machine {
    /// Prints the lines of a file as the machine writes them.
    pub(crate) fn follow(&self, file: &Path) -> Result<Child> {
        let mut tail = sh::command("tail");
        tail.args(["--lines=+1", "--sleep-interval=0.2", "--follow=name", "--retry"]);
        tail.arg(format!("--pid={}", self.vng.id())).arg(file).stderr(Stdio::null());
        tail.spawn().context("cannot start tail")
    }

    /// Waits for the end. Calls `is_alive` often, and kills the machine if that returns false.
    pub(crate) fn wait(&mut self, limit: Duration, mut is_alive: impl FnMut() -> bool) -> Result<End> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if !is_alive() {
                self.end();
                return Ok(End::GivenUp);
            }
            if self.vng.try_wait()?.is_some() {
                is_alive();
                return Ok(End::ByItself);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.end();
        Ok(End::Late)
    }

    /// Kills vng and all its descendants, such as QEMU.
    fn end(&mut self) {
        for pid in family(self.vng.id()) {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        let _ = self.vng.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if matches!(self.vng.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// A process and its descendants, parents first.
fn family(ancestor: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{ancestor}/task")).into_iter().flatten().flatten();
    // The kernel ends each list with a space, so they can be joined.
    let children: String = threads.flat_map(|thread| fs::read_to_string(thread.path().join("children"))).collect();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    std::iter::once(ancestor).chain(children.flat_map(family)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_in_the_family() {
        let mut child = sh::command("sleep").arg("5").spawn().expect("sleep");
        assert!(family(std::process::id()).contains(&child.id()));
        let _ = child.kill();
        let _ = child.wait();
    }
}
