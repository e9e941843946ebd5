//! What the checks look at: this node, or the files of a node below `--root`.
//!
//! Checks run on a thread in the node's network namespace, so that `/proc/sys/net` and `/proc/thread-self/net` are the
//! node's. Its files (`/etc/cni`, `/opt/cni`, `/run`) are those that the prober sees.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::poll::{PollTimeout, poll};

use super::finding::Unread;
use tracer_model::event::{NodePorts, Pod};
use tracer_netfilter::{NetfilterError, Survey};
use tracer_node::enter::in_netns;
use tracer_node::links::{self, Link};
use tracer_node::procfs::NodeNetns;

/// More is not read of one file.
const MAX_BYTES: u64 = 64 << 20;

/// A node, or its files.
#[derive(Debug)]
pub struct View {
    /// `--root`.
    root: Option<PathBuf>,
    /// The node's network namespace; absent with `--root`.
    node: Option<NodeNetns>,
    /// Where the node's own files are: below `--root`, or what the prober sees.
    files: Result<PathBuf, Unread>,
    /// Why `/proc` below `--root` does not show the node's network.
    other_network: Option<Unread>,
    /// A prober runs here.
    pub prober: bool,
    /// The pods of the node with their probes, if a list was given.
    pub pods: Option<Vec<Pod>>,
    /// BTF of this kernel, where it has none of its own.
    pub btf: Option<PathBuf>,
    /// How long connects are counted.
    window: Duration,
}

impl View {
    pub fn of_files(root: PathBuf, pods: Option<Vec<Pod>>) -> Self {
        Self {
            files: Ok(root.clone()),
            other_network: other_network(&root),
            root: Some(root),
            node: None,
            prober: false,
            pods,
            btf: None,
            window: Duration::ZERO,
        }
    }

    pub fn of_node(node: NodeNetns, prober: bool, pods: Option<Vec<Pod>>, window: Duration) -> Self {
        let files = if prober { seen_by(node.pid) } else { Ok(PathBuf::from("/")) };
        Self { root: None, node: Some(node), files, other_network: None, prober, pods, btf: None, window }
    }

    /// A setting: `net/ipv4/ip_forward`.
    pub fn sysctl(&self, path: &str) -> Result<String, Unread> {
        self.kernel(&format!("/proc/sys/{path}")).map(|text| text.trim().to_owned())
    }

    /// A setting that is a number.
    pub fn number(&self, path: &str) -> Result<u64, Unread> {
        let text = self.sysctl(path)?;
        text.parse().map_err(|_| Unread::new(format!("/proc/sys/{path} holds `{text}`, no number"), ""))
    }

    /// A setting that is a number and need not be there. That it is not is believed only where other settings are.
    pub fn number_if_any(&self, path: &str) -> Result<Option<u64>, Unread> {
        if self.exists(&format!("/proc/sys/{path}"))? {
            return self.number(path).map(Some);
        }
        self.sysctl("net/core/somaxconn").map(|_| None)
    }

    /// A setting of IPv4 of each link but `lo`.
    pub fn of_links(&self, setting: &str) -> Result<Vec<(String, u64)>, Unread> {
        let names = self.names("/proc/sys/net/ipv4/conf")?;
        let links = names.into_iter().filter(|name| !matches!(name.as_str(), "all" | "default" | "lo"));
        // A link that is gone by now has no setting.
        let value = |name: String| Some((self.number(&format!("net/ipv4/conf/{name}/{setting}")).ok()?, name));
        Ok(links.filter_map(value).map(|(value, name)| (name, value)).collect())
    }

    /// A file of `/proc/net`, in the node's namespace.
    pub fn net(&self, file: &str) -> Result<String, Unread> {
        let folder = if self.root.is_some() { "/proc/net" } else { "/proc/thread-self/net" };
        self.kernel(&format!("{folder}/{file}"))
    }

    /// A file of `/proc` or `/sys`.
    pub fn kernel(&self, path: &str) -> Result<String, Unread> {
        self.is_ours(path)?;
        let file = match &self.root {
            None => File::open(path),
            Some(root) => open_below(root, path, OFlag::O_RDONLY),
        };
        read(file).map_err(|error| Unread::file(path, &error))
    }

    /// A file of the node's own file system.
    pub fn text(&self, path: &str) -> Result<String, Unread> {
        let file = open_below(self.files()?, path, OFlag::O_RDONLY);
        read(file).map_err(|error| Unread::file(path, &error))
    }

    /// Whether there is such a file. Only "no such file" is a no.
    pub fn exists(&self, path: &str) -> Result<bool, Unread> {
        self.is_ours(path)?;
        let kernel = path.starts_with("/proc/") || path.starts_with("/sys/");
        let found = match (&self.root, kernel) {
            (None, true) => std::fs::symlink_metadata(path).map(drop),
            _ => open_below(self.files()?, path, OFlag::O_PATH).map(drop),
        };
        match found {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Unread::file(path, &error)),
        }
    }

    /// Whether there is such a file that can be run. An interrupted copy leaves one that is empty, or no program yet.
    pub fn is_program(&self, path: &str) -> Result<bool, Unread> {
        match open_below(self.files()?, path, OFlag::O_PATH).and_then(|file| file.metadata()) {
            Ok(found) => Ok(found.is_file() && found.len() > 0 && found.permissions().mode() & 0o111 != 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Unread::file(path, &error)),
        }
    }

    /// Names in a folder, sorted; none if there is no such folder.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, Unread> {
        self.is_ours(folder)?;
        let listed = match (&self.root, folder.starts_with("/proc/")) {
            (None, true) => std::fs::read_dir(folder),
            _ => list_below(self.files()?, folder),
        };
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Unread::file(folder, &error)),
        };
        let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Whether what this file says is about the node: that of another network namespace is not.
    fn is_ours(&self, path: &str) -> Result<(), Unread> {
        let of_network = path.starts_with("/proc/sys/net/") || path.starts_with("/proc/net/");
        self.other_network.clone().filter(|_| of_network).map_or(Ok(()), Err)
    }

    fn files(&self) -> Result<&Path, Unread> {
        self.files.as_deref().map_err(Clone::clone)
    }

    pub fn links(&self) -> Result<Vec<Link>, Unread> {
        let node = self.tables("links")?;
        links::read(node).map_err(|error| Unread::new(error.to_string(), "run `tracer doctor` as root on the node"))
    }

    /// `--root` was given: nothing but files can be read.
    pub const fn is_files(&self) -> bool {
        self.root.is_some()
    }

    pub fn node_ports(&self) -> Result<Vec<NodePorts>, Unread> {
        let node = self.tables("NodePorts")?;
        let (ports, problems) = tracer_netfilter::read(node, &self.links()?);
        problems.first().map_or(Ok(ports), |problem| Err(refused(problem)))
    }

    pub fn firewall(&self) -> Result<Survey, Unread> {
        self.tables("netfilter rules")?;
        let survey = tracer_netfilter::survey();
        survey.problems.first().map(refused).map_or(Ok(survey), Err)
    }

    pub fn prober_pid(&self) -> Result<u32, Unread> {
        let node = self.node.as_ref().ok_or_else(|| {
            Unread::new("--root shows files only, no processes", "run `tracer doctor` on the node, without --root")
        })?;
        let fix = "run `tracer doctor` where the kubelet runs, or give --prober its name";
        self.prober.then_some(node.pid).ok_or_else(|| Unread::new("no kubelet runs here", fix))
    }

    fn tables(&self, what: &str) -> Result<&NodeNetns, Unread> {
        let reason = || format!("{what} are in the kernel's tables; --root shows files only");
        self.node.as_ref().ok_or_else(|| Unread::new(reason(), "run `tracer doctor` on the node, without --root"))
    }

    /// Something that the kernel shows in its first namespace only, for all of them: read here, or there.
    pub fn first_netns<T: Send>(&self, get: impl Fn(&Self) -> Result<T, Unread> + Sync) -> Result<T, Unread> {
        get(self).or_else(|unread| {
            if self.is_files() {
                return Err(unread);
            }
            in_netns(Path::new("/proc/1/ns/net"), || get(self)).unwrap_or_else(|error| {
                let reason = format!("{}; {error}", unread.reason);
                Err(error.needs().map_or_else(|| Unread::new(&reason, ""), |needs| Unread::lacks(&reason, needs)))
            })
        })
    }

    /// Reads a counter twice, and gives how much it grew and over which time, seconds. Below `--root`, where nothing
    /// moves: its whole value over the uptime.
    pub fn growth(&self, counter: impl Fn(&Self) -> Result<u64, Unread>) -> Result<(u64, f64), Unread> {
        let first = counter(self)?;
        if self.is_files() {
            let uptime = self.kernel("/proc/uptime")?;
            let seconds = uptime.split_whitespace().next().and_then(|word| word.parse().ok());
            return seconds.map(|seconds| (first, seconds)).ok_or_else(|| Unread::new("/proc/uptime is empty", ""));
        }
        let began = Instant::now();
        while let Some(left) = self.window.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            // poll() counts whole milliseconds.
            let left = left + Duration::from_millis(1);
            let _ = poll(&mut [], PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        }
        Ok((counter(self)?.saturating_sub(first), began.elapsed().as_secs_f64()))
    }
}

/// A kernel's own `/proc` shows each reader the network of that reader's namespace, wherever it is mounted.
fn other_network(root: &Path) -> Option<Unread> {
    let namespace = |process: &str| std::fs::read_link(root.join("proc").join(process).join("ns/net"));
    let own = namespace("self").ok()?;
    if namespace("1").is_ok_and(|first| first == own) {
        return None;
    }
    let reason =
        "/proc below --root is a kernel's own, and shows our network namespace, which is not known to be the node's";
    Some(Unread::new(reason, "run `tracer doctor` without --root: it enters the namespace of the kubelet"))
}

/// The file system of a process.
fn seen_by(pid: u32) -> Result<PathBuf, Unread> {
    let root = format!("/proc/{pid}/root");
    match std::fs::read_dir(&root) {
        Ok(_) => Ok(PathBuf::from(root)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Unread::lacks(format!("cannot read {root}, the prober's file system"), "CAP_SYS_PTRACE"))
        }
        Err(error) => Err(Unread::file(&root, &error)),
    }
}

fn list_below(root: &Path, folder: &str) -> io::Result<std::fs::ReadDir> {
    let folder = open_below(root, folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// Opens a path as a process with this root would: links lead nowhere else.
fn open_below(root: &Path, path: &str, flags: OFlag) -> io::Result<File> {
    let folder = File::open(root)?;
    // A pipe must not block; with O_PATH nothing is opened, and no other flag is allowed.
    let flags = if flags.contains(OFlag::O_PATH) { flags } else { flags | OFlag::O_NONBLOCK };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    Ok(File::from(openat2(folder.as_fd(), path, how)?))
}

fn read(file: io::Result<File>) -> io::Result<String> {
    let mut bytes = Vec::new();
    file?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn refused(error: &NetfilterError) -> Unread {
    match error.needs() {
        Some(capability) => Unread::lacks(error.to_string(), capability),
        None => Unread::new(error.to_string(), "see `nft list ruleset` and `iptables-legacy-save`"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::testing::Tree;
    use super::*;
    use tracer_node::procfs::node_netns;

    #[test]
    fn a_counter_is_read_twice_with_the_window_between() {
        let window = Duration::from_millis(20);
        let view = View::of_node(node_netns(&[]).expect("own namespace"), false, None, window);
        let value = Cell::new(100);
        let (grown, seconds) = view.growth(|_| Ok(value.replace(value.get() + 7))).expect("growth");
        assert_eq!(grown, 7);
        assert!(seconds >= window.as_secs_f64(), "{seconds}");
    }

    #[test]
    fn of_files_a_counter_is_taken_over_the_uptime() {
        let tree = Tree::new(&[("proc/uptime", "200.50 390.00\n")]);
        assert_eq!(tree.view().growth(|_| Ok(401)), Ok((401, 200.5)));
        assert!(Tree::new(&[("etc/hostname", "")]).view().growth(|_| Ok(401)).is_err());
    }

    #[test]
    fn a_live_proc_below_the_root_tells_of_our_own_network() {
        let tree = Tree::new(&[("proc/sys/net/core/somaxconn", "4096\n"), ("proc/uptime", "1 1\n")]);
        let link = |process: &str, netns: &str| {
            let folder = tree.path().join("proc").join(process).join("ns");
            std::fs::create_dir_all(&folder).expect("folder");
            std::os::unix::fs::symlink(netns, folder.join("net")).expect("link");
        };
        link("self", "net:[2]");
        assert!(tree.view().number("net/core/somaxconn").is_err(), "that of process 1 is not known");
        assert!(tree.view().kernel("/proc/uptime").is_ok());
        link("1", "net:[2]");
        assert_eq!(tree.view().number("net/core/somaxconn"), Ok(4096));
    }

    #[test]
    fn only_a_missing_file_is_a_no() {
        let tree = Tree::new(&[("etc/a", "x"), ("proc/sys/net/core/somaxconn", "4096\n")]);
        let view = tree.view();
        assert_eq!((view.exists("/etc/a"), view.exists("/etc/b")), (Ok(true), Ok(false)));
        assert!(view.exists("/etc/a/b").is_err(), "a file is no folder");
        assert_eq!(view.number_if_any("net/none"), Ok(None));
        assert!(view.number("net/none").is_err());
        assert_eq!(view.text("/../../etc/a"), Ok("x".to_owned()), "the root has no parent");
    }
}
