//! What the CNI plugin `loopback` does on DEL, and what went wrong with it: it opens the namespace
//! by the path that it was given, enters it as Go's `ns.Do` does, and sets `lo` down there. And the runtime that runs it.

use std::fs::File;
use std::io::{self, BufRead as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};

use crate::selftest::helper::Role;
use crate::selftest::net::Netns;
use crate::selftest::options::Options;
use crate::selftest::proc::Proc;

/// The variable that names the namespace.
const CNI_NETNS: &str = "CNI_NETNS";

/// By which call `lo` is set down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// RTM_NEWLINK, as the plugin does.
    Netlink,
    /// SIOCSIFFLAGS, as `ifconfig` does.
    Ioctl,
}

/// An ordinary process of the node that now has the pid which a sandbox's process had once.
pub fn reused_pid(node: &Netns, options: &Options) -> Result<Proc> {
    let mut command = options.helper(node, Role::Pod)?;
    command.arg("idle");
    Proc::spawn(command)
}

/// Starts the runtime (`crio`) on the node and has it run the plugin with that namespace path.
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

/// The runtime's process: runs a CNI plugin for every line on stdin (`NETNS_PATH PLUGIN [ARG]...`), answers `done PID` or
/// `failed: why`, and lives on as a daemon does.
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

/// The plugin's process, with `CNI_NETNS` set: `netlink`, `ioctl` or `exec`.
pub fn run(way: Option<&str>) -> Result<()> {
    let path = PathBuf::from(std::env::var_os(CNI_NETNS).context("CNI_NETNS is not set")?);
    match way {
        None | Some("netlink") => delete(&path, Way::Netlink),
        Some("ioctl") => delete(&path, Way::Ioctl),
        Some("exec") => execute(&path),
        Some(other) => bail!("no way {other:?}"),
    }
}

/// Sets `lo` down in the namespace at `path`, and comes back.
pub fn delete(path: &Path, way: Way) -> Result<()> {
    let own_path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
    let own = File::open(&own_path).with_context(|| format!("open {own_path}"))?;
    let target = File::open(path).with_context(|| format!("failed to Statfs {}", path.display()))?;
    setns(&target, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", path.display()))?;
    let done = match way {
        Way::Netlink => down_by_netlink(),
        Way::Ioctl => down_by_ioctl(),
    };
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

#[repr(C)]
struct LinkRequest {
    header: libc::nlmsghdr,
    family: u8,
    pad: u8,
    kind: u16,
    index: i32,
    flags: u32,
    change: u32,
}

#[repr(C)]
struct Ack {
    header: libc::nlmsghdr,
    error: i32,
    echo: [u8; 512],
}

fn down_by_netlink() -> Result<()> {
    let fd = open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let size = size_of::<LinkRequest>();
    let header = libc::nlmsghdr {
        nlmsg_len: size as u32,
        nlmsg_type: libc::RTM_NEWLINK,
        nlmsg_flags: (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16,
        nlmsg_seq: 1,
        nlmsg_pid: 0,
    };
    let request = LinkRequest { header, family: 0, pad: 0, kind: 0, index: 1, flags: 0, change: libc::IFF_UP as u32 };
    // SAFETY: sockaddr_nl is plain old data; zero is the kernel's own address.
    let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    kernel.nl_family = libc::AF_NETLINK as u16;
    let address_size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: request and address live through the call and the sizes are theirs.
    let sent = unsafe {
        libc::sendto(fd.as_raw_fd(), (&raw const request).cast(), size, 0, (&raw const kernel).cast(), address_size)
    };
    check(sent, "send RTM_NEWLINK")?;
    // SAFETY: Ack is plain old data.
    let mut ack: Ack = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer is valid for its size.
    let got = unsafe { libc::recv(fd.as_raw_fd(), (&raw mut ack).cast(), size_of::<Ack>(), 0) };
    check(got, "receive the answer to RTM_NEWLINK")?;
    if ack.error != 0 {
        bail!("set lo down: {}", io::Error::from_raw_os_error(-ack.error));
    }
    Ok(())
}

fn down_by_ioctl() -> Result<()> {
    let fd = open(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: ifreq is plain old data; zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request lives through the call.
    let got = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &mut request) };
    check(got as isize, "flags of lo")?;
    // SAFETY: SIOCGIFFLAGS has filled this member of the union.
    unsafe { request.ifr_ifru.ifru_flags &= !(libc::IFF_UP as i16) };
    // SAFETY: the request lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &request) } as isize, "set lo down")
}

fn open(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    // SAFETY: plain numbers in, a descriptor or -1 out.
    let raw = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    check(raw as isize, "open a socket")?;
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn check(returned: isize, what: &str) -> Result<()> {
    if returned < 0 {
        return Err(io::Error::last_os_error()).with_context(|| what.to_owned());
    }
    Ok(())
}
