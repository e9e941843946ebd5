//! What the checks read: this node, or the files of a node below `--root`.
//!
//! Checks run on a thread in the node's network namespace, so that `/proc/sys/net` and `/proc/thread-self/net` are the
//! node's. Its files (`/etc/cni`, `/opt/cni`, `/run`) are those that the prober sees.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::poll::{PollTimeout, poll};

use super::finding::Unread;
use super::{Options, no_prober};
use tracer_model::event::NodePorts;
use tracer_netfilter::{NetfilterError, Survey};
use tracer_node::enter::in_netns;
use tracer_node::links::{self, Link};
use tracer_node::procfs::NodeNetns;

/// The view reads at most this much of one file.
const MAX_BYTES: u64 = 64 << 20;

/// A node, or its files.
#[derive(Debug)]
pub struct View {
    pub options: Options,
    /// The node's network namespace; absent with `--root`.
    node: Option<NodeNetns>,
    /// The root of the node's own files: `--root`, or the root of the prober.
    files: Result<PathBuf, Unread>,
    /// Why `/proc` below `--root` does not show the node's network.
    other_network: Option<Unread>,
    pub prober: bool,
}

impl View {
    pub fn of_files(root: PathBuf, options: Options) -> Self {
        let (files, other_network) = (Ok(root.clone()), other_network(&root));
        let options = Options { root: Some(root), ..options };
        Self { options, node: None, files, other_network, prober: false }
    }

    pub fn of_node(node: NodeNetns, prober: bool, options: Options) -> Self {
        let files = if prober { root_of(node.pid) } else { Ok(PathBuf::from("/")) };
        Self { options, node: Some(node), files, other_network: None, prober }
    }

    /// Reads a setting, such as `net/ipv4/ip_forward`.
    pub fn sysctl(&self, path: &str) -> Result<String, Unread> {
        self.kernel(&format!("/proc/sys/{path}")).map(|text| text.trim().to_owned())
    }

    pub fn number(&self, path: &str) -> Result<u64, Unread> {
        let text = self.sysctl(path)?;
        text.parse().map_err(|_| Unread::new(format!("/proc/sys/{path} holds `{text}`, no number"), ""))
    }

    /// Reads a number that some kernels lack. It counts as absent only if another setting can be read.
    pub fn number_if_any(&self, path: &str) -> Result<Option<u64>, Unread> {
        if self.exists(&format!("/proc/sys/{path}"))? {
            return self.number(path).map(Some);
        }
        self.sysctl("net/core/somaxconn").map(|_| None)
    }

    /// Reads an IPv4 setting of each link except `lo`.
    pub fn number_of_each_link(&self, setting: &str) -> Result<Vec<(String, u64)>, Unread> {
        let names = self.names("/proc/sys/net/ipv4/conf")?;
        let links = names.into_iter().filter(|name| !matches!(name.as_str(), "all" | "default" | "lo"));
        // A link that disappeared after the listing has no setting.
        let value = |name: String| Some((self.number(&format!("net/ipv4/conf/{name}/{setting}")).ok()?, name));
        Ok(links.filter_map(value).map(|(value, name)| (name, value)).collect())
    }

    /// Reads a file of `/proc/net` in the node's namespace.
    pub fn net(&self, file: &str) -> Result<String, Unread> {
        let folder = if self.is_files() { "/proc/net" } else { "/proc/thread-self/net" };
        self.kernel(&format!("{folder}/{file}"))
    }

    /// Reads a file of `/proc` or `/sys`.
    pub fn kernel(&self, path: &str) -> Result<String, Unread> {
        self.refuse_other_network(path)?;
        let file = match &self.options.root {
            None => File::open(path),
            Some(root) => open_below(root, path, OFlag::O_RDONLY),
        };
        read(file).map_err(|error| Unread::file(path, &error))
    }

    /// Reads a file of the node's own file system.
    pub fn text(&self, path: &str) -> Result<String, Unread> {
        let file = open_below(self.files()?, path, OFlag::O_RDONLY);
        read(file).map_err(|error| Unread::file(path, &error))
    }

    pub fn exists(&self, path: &str) -> Result<bool, Unread> {
        self.refuse_other_network(path)?;
        let kernel = path.starts_with("/proc/") || path.starts_with("/sys/");
        let found = match kernel && !self.is_files() {
            true => std::fs::symlink_metadata(path).map(drop),
            false => open_below(self.files()?, path, OFlag::O_PATH).map(drop),
        };
        Ok(if_any(path, found)?.is_some())
    }

    /// Whether this is an executable file. An interrupted copy leaves an empty file, or one that is not executable yet.
    pub fn is_program(&self, path: &str) -> Result<bool, Unread> {
        let found = open_below(self.files()?, path, OFlag::O_PATH).and_then(|file| file.metadata());
        let is_program = |it: Metadata| it.is_file() && it.len() > 0 && it.permissions().mode() & 0o111 != 0;
        Ok(if_any(path, found)?.is_some_and(is_program))
    }

    /// Lists the names in a folder, sorted; none if the folder does not exist.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, Unread> {
        self.refuse_other_network(folder)?;
        let listed = match folder.starts_with("/proc/") && !self.is_files() {
            true => std::fs::read_dir(folder),
            false => list_below(self.files()?, folder),
        };
        let entries = if_any(folder, listed)?.into_iter().flatten();
        let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Refuses files that show another network namespace than the node's.
    fn refuse_other_network(&self, path: &str) -> Result<(), Unread> {
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

    /// Whether `--root` was given, so that only files can be read.
    pub const fn is_files(&self) -> bool {
        self.options.root.is_some()
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
        let node = self.node("--root shows files only, no processes")?;
        let fix = "run `tracer doctor` where the kubelet runs, or give --prober its name";
        self.prober.then_some(node.pid).ok_or_else(|| Unread::new(no_prober(&self.options.probers), fix))
    }

    fn tables(&self, what: &str) -> Result<&NodeNetns, Unread> {
        self.node(format!("{what} are in the kernel's tables; --root shows files only"))
    }

    /// The node itself. `reason`: why its files are not enough.
    pub fn node(&self, reason: impl Into<String>) -> Result<&NodeNetns, Unread> {
        self.node.as_ref().ok_or_else(|| Unread::new(reason, "run `tracer doctor` on the node, without --root"))
    }

    /// Reads what the kernel shows only in the first network namespace: tries this one, then that of process 1.
    pub fn first_netns<T: Send>(&self, get: impl Fn(&Self) -> Result<T, Unread> + Sync) -> Result<T, Unread> {
        get(self).or_else(|unread| {
            if self.is_files() {
                return Err(unread);
            }
            in_netns(Path::new("/proc/1/ns/net"), || get(self)).unwrap_or_else(|error| {
                Err(Unread::for_lack_of(error.needs(), format!("{}; {error}", unread.reason), ""))
            })
        })
    }

    /// Reads a counter twice; returns by how much it grew, and in how many seconds. With `--root` the counter stands still:
    /// returns its value and the uptime.
    pub fn growth(&self, counter: impl Fn(&Self) -> Result<u64, Unread>) -> Result<(u64, f64), Unread> {
        let first = counter(self)?;
        if self.is_files() {
            let uptime = self.kernel("/proc/uptime")?;
            let seconds = uptime.split_whitespace().next().and_then(|word| word.parse().ok());
            return seconds.map(|seconds| (first, seconds)).ok_or_else(|| Unread::new("/proc/uptime is empty", ""));
        }
        let began = Instant::now();
        while let Some(left) = self.options.window.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            // poll() counts whole milliseconds.
            let left = left + Duration::from_millis(1);
            let _ = poll(&mut [], PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        }
        Ok((counter(self)?.saturating_sub(first), began.elapsed().as_secs_f64()))
    }
}

/// A mounted `/proc` shows each reader the network of the reader's own namespace, wherever it is mounted.
fn other_network(root: &Path) -> Option<Unread> {
    let namespace = |process: &str| std::fs::read_link(root.join("proc").join(process).join("ns/net"));
    let own = namespace("self").ok()?;
    if namespace("1").is_ok_and(|first| first == own) {
        return None;
    }
    let reason =
        "/proc below --root is a mounted /proc: it shows our own network namespace, and that may not be the node's";
    Some(Unread::new(reason, "run `tracer doctor` without --root: it enters the namespace of the kubelet"))
}

/// The root folder that a process sees.
fn root_of(pid: u32) -> Result<PathBuf, Unread> {
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

/// Opens a path as a process with this root would: symbolic links cannot lead out of it.
fn open_below(root: &Path, path: &str, flags: OFlag) -> io::Result<File> {
    let folder = File::open(root)?;
    // O_NONBLOCK: open() of a FIFO must not block. O_PATH does not open the file and allows no such flag.
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
    let fix = "see `nft list ruleset` and `iptables-legacy-save`";
    Unread::for_lack_of(error.needs(), error.to_string(), fix)
}

/// What was found; `None` if there is no such file. Each other error leaves it unknown.
fn if_any<T>(path: &str, found: io::Result<T>) -> Result<Option<T>, Unread> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Unread::file(path, &error)),
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
        let options = Options { window, ..Options::default() };
        let view = View::of_node(node_netns(&[]).expect("own namespace"), false, options);
        let value = Cell::new(100);
        let (grown, seconds) = view.growth(|_| Ok(value.replace(value.get() + 7))).expect("growth");
        assert_eq!(grown, 7);
        assert!(seconds >= window.as_secs_f64(), "{seconds}");
    }

    #[test]
    fn with_root_a_counter_grew_over_the_uptime() {
        let tree = Tree::new(&[("proc/uptime", "200.50 390.00\n")]);
        assert_eq!(tree.view().growth(|_| Ok(401)), Ok((401, 200.5)));
        assert!(Tree::new(&[("etc/hostname", "")]).view().growth(|_| Ok(401)).is_err());
    }

    #[test]
    fn network_settings_of_a_mounted_proc_count_only_if_process_1_shares_our_network() {
        let tree = Tree::new(&[("proc/sys/net/core/somaxconn", "4096\n"), ("proc/uptime", "1 1\n")]);
        let link = |process: &str, netns: &str| {
            let folder = tree.path().join("proc").join(process).join("ns");
            std::fs::create_dir_all(&folder).expect("folder");
            std::os::unix::fs::symlink(netns, folder.join("net")).expect("link");
        };
        link("self", "net:[2]");
        assert!(tree.view().number("net/core/somaxconn").is_err(), "the namespace of process 1 is not known");
        assert!(tree.view().kernel("/proc/uptime").is_ok());
        link("1", "net:[2]");
        assert_eq!(tree.view().number("net/core/somaxconn"), Ok(4096));
    }

    #[test]
    fn only_a_missing_file_does_not_exist() {
        let tree = Tree::new(&[("etc/a", "x"), ("proc/sys/net/core/somaxconn", "4096\n")]);
        let view = tree.view();
        assert_eq!((view.exists("/etc/a"), view.exists("/etc/b")), (Ok(true), Ok(false)));
        assert!(view.exists("/etc/a/b").is_err(), "/etc/a is no folder");
        assert_eq!(view.number_if_any("net/none"), Ok(None));
        assert!(view.number("net/none").is_err());
        assert_eq!(view.text("/../../etc/a"), Ok("x".to_owned()), "the root has no parent");
    }
}
