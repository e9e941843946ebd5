//! Named network namespaces. The machine's own namespace is never changed.

use std::fmt::Display;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::ip::Ip;

/// Where `ip netns` binds its namespaces.
pub const NAMED: &str = "/run/netns";
/// The names of all namespaces and cgroups of the testbed begin with it.
pub const PREFIX: &str = "trw-";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A name for a namespace or a cgroup of this run, by which its leftovers are found.
pub fn own_name(what: impl Display) -> String {
    format!("{PREFIX}{}-{what}", process::id())
}

/// A network namespace bound to a name; unbound on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: Arc<File>,
    inum: u32,
}

impl Netns {
    /// Makes a namespace and binds it to `name`.
    pub fn create(name: &str) -> Result<Self> {
        fs::create_dir_all(NAMED).with_context(|| format!("create {NAMED}"))?;
        let path = Path::new(NAMED).join(name);
        File::create_new(&path).with_context(|| format!("create {}", path.display()))?;
        if let Err(error) = bind_new(&path) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let file = File::open(&path)?;
        let inum = u32::try_from(file.metadata()?.ino()).context("inode number of a namespace")?;
        Ok(Self { name: name.to_owned(), file: Arc::new(file), inum })
    }

    pub const fn inum(&self) -> u32 {
        self.inum
    }

    /// A command that runs in this namespace.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let file = Arc::clone(&self.file);
        // SAFETY: setns is async-signal-safe, and the command holds the descriptor.
        unsafe {
            command.pre_exec(move || Ok(setns(&*file, CloneFlags::CLONE_NEWNET)?));
        }
        die_with_parent(&mut command);
        command
    }

    /// Runs `work` on a thread in this namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", self.name))?;
                work()
            });
            inside.join().map_err(|_| anyhow!("a thread inside {} panicked", self.name))?
        })
    }

    /// Writes settings below `/proc/sys/net`, with names such as `ipv4/ip_forward`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (name, value) in settings {
                let path = format!("/proc/sys/net/{name}");
                fs::write(&path, value).with_context(|| format!("write {value:?} to {path} in {}", self.name))?;
            }
            Ok(())
        })
    }

    /// Runs a program in this namespace, waits for its end and returns its stdout.
    pub fn run(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        finish(self.command(program).args(args), input)
    }

    /// Changes its links, addresses and routes.
    pub fn ip<T: Send>(&self, work: impl FnOnce(&mut Ip) -> Result<T> + Send) -> Result<T> {
        self.enter(|| work(&mut Ip::open()?).with_context(|| format!("in {}", self.name)))
    }

    /// Loads an nftables script in this namespace.
    pub fn nft(&self, script: &str) -> Result<()> {
        self.run("nft", &["-f", "-"], script).map(drop)
    }

    /// Adds an nftables input chain with these rules.
    pub fn input_rule(&self, rules: &str) -> Result<()> {
        let chain = format!("type filter hook input priority 0; {rules}");
        self.nft(&format!("table inet podpolicy {{ chain ingress {{ {chain} }}; }}\n"))
    }

    pub fn path(&self) -> PathBuf {
        Path::new(NAMED).join(&self.name)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        unbind(&self.path());
    }
}

/// Whether [`finish`] would find this program.
pub fn is_installed(program: &str) -> bool {
    PATH.split(':').any(|dir| Path::new(dir).join(program).exists())
}

/// Removes a name. The namespace ends with its last process.
pub fn unbind(path: &Path) {
    let _ = umount2(path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

/// The child gets SIGKILL when the thread that started it ends, so a killed run leaves no processes behind.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe and takes plain numbers.
    unsafe {
        command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
    }
}

/// Runs a command with `input` on its stdin, waits for its end and returns its stdout.
pub fn finish(command: &mut Command, input: &str) -> Result<String> {
    use std::io::Write;
    command.env("PATH", PATH).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = command_line(command);
    let mut child = command.spawn().with_context(|| format!("start {what}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let reported = String::from_utf8_lossy(&output.stderr);
        bail!("{what}: {}: {}{}", output.status, reported.trim(), input_note(input));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn input_note(input: &str) -> String {
    if input.is_empty() { String::new() } else { format!(" (input: {input:?})") }
}

/// Makes a namespace on a new thread and binds it to `path`.
fn bind_new(path: &Path) -> Result<()> {
    thread::scope(|scope| {
        let maker = scope.spawn(|| -> Result<()> {
            unshare(CloneFlags::CLONE_NEWNET).context("make a network namespace (root needed)")?;
            mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .with_context(|| format!("bind the namespace to {}", path.display()))
        });
        maker.join().map_err(|_| anyhow!("the thread that makes a namespace panicked"))?
    })
}
