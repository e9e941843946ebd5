//! Runs a command in a guest: the script for it, its output and its exit code.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::kernels::Kernel;
use super::virtme::End;
use super::{Release, directory, kernels, virtme};
use crate::sh::{self, regex};

/// Modules that a node has loaded, and the queueing disciplines of the scenarios. The kernel loads others on demand.
const MODULES: &str = "ip_vs ip_vs_rr ip_vs_wrr nf_conntrack nf_tables br_netfilter bridge veth dummy vxlan sch_netem";

/// [`Job::run`] returns this for a machine that hung.
pub(crate) const HUNG: i32 = -1;

/// A command to be run under a kernel.
pub(crate) struct Job {
    pub(crate) release: &'static Release,
    /// Programs and their arguments. The exit code is that of the last one.
    pub(crate) commands: Vec<Vec<String>>,
    pub(crate) directory: PathBuf,
    /// Time limit of each command. The machine is killed a little later.
    pub(crate) limit: Duration,
    /// Whether to print their output at once.
    pub(crate) echo: bool,
}

impl Job {
    /// Boots, runs the commands, and returns the exit code, or [`HUNG`]. The output is also in `log` of the release's
    /// folder.
    pub(crate) fn run(&self) -> Result<i32> {
        let kernel = kernels::ensure(self.release, false)?;
        let shared = directory(self.release);
        fs::create_dir_all(&shared)?;
        let lock = File::create(shared.join("lock"))?;
        if lock.try_lock().is_err() {
            eprintln!("xtask: another run uses kernel {}: waiting for its end", self.release.name);
            lock.lock().context("cannot lock the directory of the machine")?;
        }
        let mut ended = self.boot(&kernel, &shared)?;
        let is_cut_short = || !shared.join("log").exists() || is_emulators(&console(&shared));
        if matches!(ended, End::ByItself) && !shared.join("exit").exists() && is_cut_short() {
            let words = "the machine ended before its script did: booting it once more. Its last words";
            eprintln!("xtask: kernel {}: {words}:\n{}", self.release.name, last_lines(&shared));
            ended = self.boot(&kernel, &shared)?;
        }
        exit_code(&shared, ended, self)
    }

    /// Boots, and waits for the end. The emulation bug that [`Watchdog`] describes can also make the guest's kernel
    /// panic: see [`is_emulators`].
    fn boot(&self, kernel: &Kernel, shared: &Path) -> Result<End> {
        let script = self.prepare(shared)?;
        let console = File::create(shared.join("console.txt"))?;
        let mut machine = virtme::boot(kernel, self.release.parameters, &script, shared, console)?;
        let mut tail = if self.echo { Some(machine.follow(&shared.join("log"))?) } else { None };
        let mut watchdog = Watchdog::new(shared.join("console.txt"));
        let ended = machine.wait(self.limit + Duration::from_secs(60), || watchdog.is_alive())?;
        if let Some(tail) = &mut tail {
            tail.wait()?;
        }
        Ok(ended)
    }

    fn prepare(&self, shared: &Path) -> Result<PathBuf> {
        for old in ["log", "exit"] {
            let _ = fs::remove_file(shared.join(old));
        }
        let script = shared.join("script.sh");
        fs::write(&script, self.script(shared))?;
        Ok(script)
    }

    fn script(&self, shared: &Path) -> String {
        let shared = sh::quoted(&shared.display().to_string());
        let directory = sh::quoted(&self.directory.display().to_string());
        let seconds = self.limit.as_secs();
        let settings =
            self.release.settings.iter().fold(String::new(), |text, it| format!("{text}sysctl -q -w {it} || exit\n"));
        let programs = programs(&self.commands.concat());
        let commands = self.commands.iter().map(|words| {
            let words: Vec<String> = words.iter().map(|word| sh::quoted(word)).collect();
            format!("timeout --kill-after=10 {seconds} {}\n", words.join(" "))
        });
        let commands: String = commands.collect();
        format!(
            r"# Made by `cargo xtask vm`, run as root in the guest.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
exec > {shared}/log 2>&1 < /dev/null
ip link set lo up
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
modprobe --all {MODULES} || echo 'guest: some of these modules could not be loaded: {MODULES}'
{settings}{programs}cd {directory}
{commands}echo $? > {shared}/exit.new
mv {shared}/exit.new {shared}/exit
"
        )
    }
}

/// Script lines that copy the programs of the tests into the guest's memory. The scenarios start them hundreds of
/// times. From the host's file system, an emulated processor needs a second for each start.
fn programs(words: &[String]) -> String {
    // Only executables: the guest must write output files to the host.
    let is_program = |path: &Path| path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    let is_ours = |word: &&String| Path::new(word).starts_with(sh::target()) && is_program(Path::new(word));
    let ours: BTreeSet<&String> = words.iter().filter(is_ours).collect();
    let lines = ours.into_iter().enumerate().map(|(n, word)| {
        let word = sh::quoted(word);
        format!("mkdir -p /run/programs && cp {word} /run/programs/{n} && mount --bind /run/programs/{n} {word}\n")
    });
    lines.collect()
}

/// The exit code from the guest, or the reason why there is none.
fn exit_code(shared: &Path, ended: End, job: &Job) -> Result<i32> {
    let name = job.release.name;
    let minutes = job.limit.as_secs().div_ceil(60);
    let Ok(text) = fs::read_to_string(shared.join("exit")) else {
        let why = match ended {
            End::GivenUp => {
                eprintln!("xtask: kernel {name}: the machine hung (a soft lockup, see console.txt) and was ended");
                return Ok(HUNG);
            }
            End::ByItself => "ended by itself".into(),
            End::Late => format!("was ended after {minutes} minutes"),
        };
        bail!("the machine with kernel {name} {why} before the command did; its last words:\n{}", last_lines(shared));
    };
    let code = text.trim().parse().context("the guest's exit code")?;
    if code == 124 {
        eprintln!("xtask: kernel {name}: the command took longer than {minutes} minutes and was ended");
    }
    Ok(code)
}

/// Whether the guest's kernel met an instruction that QEMU should have replaced (see [`Watchdog`]). Seen twice during boot,
/// and once in a run.
fn is_emulators(console: &str) -> bool {
    console.contains("Oops: int3")
}

fn console(shared: &Path) -> String {
    String::from_utf8_lossy(&fs::read(shared.join("console.txt")).unwrap_or_default()).replace('\r', "")
}

fn last_lines(shared: &Path) -> String {
    let text = console(shared);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Detects a guest that hangs.
///
/// An emulated processor of QEMU may execute a stale instruction that another processor has rewritten. The kernel
/// rewrites instructions for its static keys (`text_poke_bp` writes `int3` meanwhile). Then the processor traps
/// forever. That was seen once with QEMU 7.2, on both processors of 6.1 at the key of tc's ingress.
struct Watchdog {
    console: PathBuf,
    last_check: Instant,
}

impl Watchdog {
    const EVERY: Duration = Duration::from_secs(5);

    fn new(console: PathBuf) -> Self {
        Self { console, last_check: Instant::now() }
    }

    fn is_alive(&mut self) -> bool {
        if self.last_check.elapsed() < Self::EVERY {
            return true;
        }
        self.last_check = Instant::now();
        !fs::read(&self.console).is_ok_and(|text| has_hung(&String::from_utf8_lossy(&text)))
    }
}

/// Whether a processor has been stuck for longer than a busy machine explains.
fn has_hung(console: &str) -> bool {
    const SECONDS: u64 = 100;
    let stuck = regex(r"soft lockup - CPU#\d+ stuck for (\d+)s");
    stuck.captures_iter(console).filter_map(|it| it[1].parse::<u64>().ok()).any(|seconds| seconds >= SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_a_long_soft_lockup_has_hung() {
        let reported =
            |seconds| format!("[  440.4] watchdog: BUG: soft lockup - CPU#0 stuck for {seconds}s! [kubelet:2240]\r\n");
        assert!(!has_hung(""));
        assert!(!has_hung(&[reported(23), reported(49)].concat()), "a busy machine");
        assert!(has_hung(&[reported(49), reported(75), reported(101)].concat()));
    }
}
