//! The CNI plugin `loopback` and the container runtime that runs it.
//!
//! On DEL the plugin opens the namespace by the path that it got, enters it as Go's `ns.Do` does, and sets `lo` down.
//! If the path is wrong, it sets `lo` of another namespace down.

use std::fs::File;
use std::io::{self, BufRead as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::helper::Role;
use crate::ip::Ip;
use crate::net::Netns;
use crate::options::Options;
use crate::proc::Proc;

/// The variable that names the namespace.
const CNI_NETNS: &str = "CNI_NETNS";

/// Starts a process of the node. Its pid stands for one that belonged to a sandbox's process before.
pub fn reused_pid(node: &Netns, options: &Options) -> Result<Proc> {
    let mut command = options.helper(node, Role::Pod)?;
    command.arg("idle");
    Proc::spawn(command)
}

/// Starts the runtime (`crio`) on the node, which runs the plugin with this namespace path.
pub fn run_by_runtime(node: &Netns, options: &Options, path: &str, way: &str) -> Result<Proc> {
    let mut runtime = Proc::spawn(options.helper(node, Role::Crio)?)?;
    runtime.line(options.patience)?;
    let plugin = options.words(Role::Loopback)?;
    let words: Vec<&str> = plugin.iter().filter_map(|word| word.to_str()).collect();
    runtime.say(&format!("{path} {} {way}", words.join(" ")))?;
    let answer = runtime.line(options.patience)?;
    if !answer.starts_with("done") {
        bail!("runtime: {answer}");
    }
    Ok(runtime)
}

/// The process of the runtime. For every line on stdin (`NETNS_PATH PLUGIN [ARG]...`) it runs a CNI plugin and answers
/// `done PID` or `failed: why`. It keeps running as a daemon does.
pub fn runtime() -> Result<()> {
    println!("ready");
    for line in io::stdin().lock().lines() {
        match run_plugin(&line?) {
            Ok(pid) => println!("done {pid}"),
            Err(error) => println!("failed: {error:#}"),
        }
    }
    Ok(())
}

fn run_plugin(line: &str) -> Result<u32> {
    let mut words = line.split_whitespace();
    let netns = words.next().context("which namespace")?;
    let plugin = words.next().context("which plugin")?;
    let mut child = Command::new(plugin)
        .args(words)
        .env("CNI_COMMAND", "DEL")
        .env("CNI_CONTAINERID", "5a1f")
        .env("CNI_IFNAME", "lo")
        .env(CNI_NETNS, netns)
        .spawn()
        .with_context(|| format!("start {plugin}"))?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{plugin}: {status}");
    }
    Ok(child.id())
}

/// The process of the plugin. `way` is `netlink`, `ioctl` or `exec`; `CNI_NETNS` must be set.
pub fn run(way: Option<&str>) -> Result<()> {
    let path = PathBuf::from(std::env::var_os(CNI_NETNS).context("CNI_NETNS is not set")?);
    match way {
        None | Some("netlink") => delete(&path, down_by_netlink),
        Some("ioctl") => delete(&path, down_by_ioctl),
        Some("exec") => execute(&path),
        Some(other) => bail!("no way {other:?}"),
    }
}

/// Sets `lo` down in the namespace at `path`, and returns to the previous namespace.
fn delete(path: &Path, set_down: fn() -> Result<()>) -> Result<()> {
    let own_path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
    let own = File::open(&own_path).with_context(|| format!("open {own_path}"))?;
    let target = File::open(path).with_context(|| format!("failed to Statfs {}", path.display()))?;
    setns(&target, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", path.display()))?;
    let done = set_down();
    setns(&own, CloneFlags::CLONE_NEWNET).context("return to the own namespace")?;
    done
}

/// Enters an IPC namespace and then the network namespace at `path`, as runc does, and sets `lo` down there.
fn execute(path: &Path) -> Result<()> {
    let own = File::open("/proc/self/ns/ipc").context("open the own IPC namespace")?;
    unshare(CloneFlags::CLONE_NEWIPC).context("make an IPC namespace")?;
    let target = File::open(path).with_context(|| format!("open {}", path.display()))?;
    setns(&own, CloneFlags::CLONE_NEWIPC).context("enter the IPC namespace")?;
    setns(&target, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", path.display()))?;
    down_by_netlink()
}

/// By RTM_NEWLINK, as the plugin does.
fn down_by_netlink() -> Result<()> {
    Ip::open()?.down("lo")
}

/// By SIOCSIFFLAGS, as `ifconfig` does.
fn down_by_ioctl() -> Result<()> {
    let socket =
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).context("open a socket")?;
    // SAFETY: ifreq is plain old data; zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    let ioctl = |number: libc::Ioctl, request: &mut libc::ifreq| {
        // SAFETY: the descriptor is open and the request lives through the call.
        Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut *request) })
    };
    ioctl(libc::SIOCGIFFLAGS as libc::Ioctl, &mut request).context("flags of lo")?;
    // SAFETY: SIOCGIFFLAGS has filled this member of the union.
    unsafe { request.ifr_ifru.ifru_flags &= !(libc::IFF_UP as i16) };
    ioctl(libc::SIOCSIFFLAGS as libc::Ioctl, &mut request).context("set lo down").map(drop)
}
