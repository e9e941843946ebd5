//! What the kubelet writes to its log, as facts: a thread follows the log and sends what it understands. Its Events
//! in the cluster API say the same less precisely; they come by `sources/cluster`.
//!
//! The log is the one that was named, or what the kubelet's own stderr leads to: a file, or the systemd journal.

mod entry;
mod event;
mod fields;
mod follow;
pub(super) mod fuzzing;
mod journal;
mod line;
pub(super) mod process;
mod redact;
mod text;
mod verbosity;
mod words;

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::sync::mpsc::Sender;

pub(super) use self::event::KubeletEvent;
use self::follow::LogFollower;
pub use self::journal::within as journal_in;
pub use self::verbosity::{KubeletLogging, KubeletLoggingError};
use super::background::Supervisor;
use tracer_model::event::{ObservationKind, is_kubelet_name};
use tracer_node::cgroup;
use tracer_node::procfs::{self, Process};
use tracer_terminal::error::os_message;

/// A log as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedLog {
    /// A plain file.
    File(PathBuf),
    /// The node's journal, or the one in this directory.
    Journal(Option<PathBuf>),
}

impl FromStr for NamedLog {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix("journal:") {
            Some(directory) => Self::Journal(Some(directory.into())),
            None if text == "journal" => Self::Journal(None),
            None => Self::File(text.into()),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeletLog {
    /// The file that was named.
    File(PathBuf),
    /// The lines of processes of these names in the journal: in this directory, or where the process sees it.
    Journal(Option<PathBuf>, Vec<String>),
    /// What the stderr or stdout of a process of these names leads to.
    Own(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Text(PathBuf),
    /// The journal's current file.
    Journal(PathBuf),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Text(path) | Self::Journal(path) => path,
        }
    }
}

impl KubeletLog {
    /// The log that was named; else what a kubelet writes to, if that can be followed, or if none runs yet.
    pub fn find(named: Option<&NamedLog>, names: &[String]) -> Option<Self> {
        match named {
            Some(NamedLog::File(path)) => Some(Self::File(path.clone())),
            Some(NamedLog::Journal(directory)) => Some(Self::Journal(directory.clone(), names.to_vec())),
            None => Self::own(names),
        }
    }

    fn own(names: &[String]) -> Option<Self> {
        let kubelets = kubelets(names);
        let found = kubelets.is_empty() || log_of(&kubelets).is_some();
        found.then(|| Self::Own(names.to_vec()))
    }

    /// For the list of sources, with what its kubelet [lacks](lack) and why its lines can be [forged](exposure).
    pub fn describe(&self, lack: Option<&str>, exposure: Option<&str>) -> String {
        let what = match (self, self.locate()) {
            (Self::File(path), _) => format!("kubelet log {}", path.display()),
            (_, Some(Place::Journal(path))) => format!("the kubelet's lines in the journal {}", path.display()),
            (_, Some(Place::Text(_))) => "the kubelet's stderr".to_owned(),
            (Self::Journal(..), None) => "the kubelet's lines in the journal, which is not there yet".to_owned(),
            (Self::Own(_), None) => "the kubelet's own log, once it runs".to_owned(),
        };
        match (lack, exposure) {
            (None, None) => format!("probe outcomes ({what})"),
            (None, Some(exposure)) => format!("probe outcomes, which pods can forge ({what}): {exposure}"),
            (Some(lack), _) => format!("no probe outcomes, failed sandboxes only ({what}): {lack}"),
        }
    }

    /// Where it is now.
    fn locate(&self) -> Option<Place> {
        match self {
            Self::File(path) => Some(Place::Text(path.clone())),
            Self::Journal(Some(directory), _) => journal::within(directory).map(Place::Journal),
            Self::Journal(None, names) => journal_of(&kubelets(names)).map(Place::Journal),
            Self::Own(names) => log_of(&kubelets(names)),
        }
    }

    /// Names of the processes that write its lines to a common log.
    fn names(&self) -> &[String] {
        match self {
            Self::File(_) => &[],
            Self::Journal(_, names) | Self::Own(names) => names,
        }
    }

    /// Follows it from its end on, until nobody takes the facts. A log that cannot be read is looked for again.
    pub fn follow(self, tx: Sender<ObservationKind>, supervisor: &Supervisor) {
        // Opened before anybody is reported that it is followed: what is written from then on is new.
        let follower = LogFollower::opened(self);
        let run = move || follower.run(line::parse, &tx);
        if let Err(error) = supervisor.thread("kubelet-log", run) {
            tracing::error!("the kubelet's log is not followed: no thread: {error}");
        }
    }
}

/// Why no kubelet among processes of these names writes how probes ended, and what fixes that; nothing where one may.
pub fn lack(names: &[String]) -> Option<String> {
    lack_of(&loggings(names).collect::<Result<Vec<_>, _>>().ok()?)
}

/// Why lines of a kubelet among processes of these names can be a pod's words.
pub fn exposure(names: &[String]) -> Option<String> {
    loggings(names).flatten().find_map(|it| Some(format!("the kubelet (pid {}) {}", it.pid, it.exposure()?)))
}

/// How those that are kubelets and nothing else log.
fn loggings(names: &[String]) -> impl Iterator<Item = Result<KubeletLogging, KubeletLoggingError>> {
    let names: Vec<String> = names.iter().filter(|name| *name == verbosity::NAME).cloned().collect();
    kubelets(&names).into_iter().map(KubeletLogging::of)
}

/// `None` if one of them lacks nothing: it may be the one that writes the log.
fn lack_of(kubelets: &[KubeletLogging]) -> Option<String> {
    let lacks: Option<Vec<String>> = kubelets.iter().map(KubeletLogging::lack).collect();
    let (kubelet, lack) = (kubelets.first()?, lacks?.into_iter().next()?);
    Some(format!("the kubelet (pid {}) {lack}; {}", kubelet.pid, kubelet.fix()))
}

/// Why the log of a kubelet among processes of these names cannot be followed, and what fixes that.
pub fn unfollowed(names: &[String]) -> Option<String> {
    let names: Vec<String> = names.iter().filter(|name| is_kubelet_name(name)).cloned().collect();
    let kubelets = kubelets(&names);
    let lost = kubelets.first().filter(|_| log_of(&kubelets).is_none())?;
    Some(format!("the stderr of the kubelet (pid {lost}) {}; {TO_NAME}", not_followed(&stderr(*lost))))
}

/// Why the log of this kubelet cannot be followed, in words that follow "its stderr".
pub fn stderr_lost(pid: u32) -> Option<String> {
    log_of(&[pid]).is_none().then(|| not_followed(&stderr(pid)))
}

/// Where its stderr leads to nothing that can be followed.
pub const TO_NAME: &str = "name its log (--kubelet-log FILE), or take its Events (--api-events NAMESPACE)";

fn stderr(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/2"))
}

/// Of a descriptor, in words that follow its name.
fn not_followed(target: &io::Result<PathBuf>) -> String {
    match target.as_ref().map(|target| target.to_string_lossy()) {
        Ok(target) if target.starts_with("socket:") => "is a socket, and no systemd journal can be read".to_owned(),
        Ok(target) if target.starts_with("pipe:") => "is a pipe, which only its reader can read".to_owned(),
        Ok(target) => format!("leads to {target}, which is no file that can be followed"),
        Err(error) => format!("cannot be looked at ({})", os_message(error)),
    }
}

/// Processes of these names that can be the node's kubelet.
fn kubelets(names: &[String]) -> Vec<u32> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let processes = procfs::scan(names).0.into_iter();
    processes.filter(|it| can_be(it, &own) && procfs::is_root(it.pid)).map(|it| it.pid).collect()
}

/// By its name and place. What runs in a pod only calls itself so, and what it writes is nobody's word, unless all of the
/// node is in that pod: then so are we (`own`, our cgroups).
fn can_be(process: &Process, own: &str) -> bool {
    process.prober.is_some() && process.pod.as_ref().is_none_or(|pod| cgroup::is_within(own, &pod.uid))
}

/// What the first of them writes to that can be followed.
fn log_of(kubelets: &[u32]) -> Option<Place> {
    let paths = descriptors(kubelets);
    let file = paths.iter().find(|path| fs::metadata(path).is_ok_and(|it| it.is_file()));
    let journal = || paths.iter().any(|path| is_socket(path)).then(|| journal_of(kubelets)).flatten();
    file.cloned().map(Place::Text).or_else(|| journal().map(Place::Journal))
}

/// Their stderr and stdout.
fn descriptors(kubelets: &[u32]) -> Vec<PathBuf> {
    let of = |pid: &u32| [2, 1].map(|fd| PathBuf::from(format!("/proc/{pid}/fd/{fd}")));
    kubelets.iter().flat_map(of).collect()
}

/// systemd gives its services a socket to journald as stderr.
fn is_socket(descriptor: &Path) -> bool {
    fs::read_link(descriptor).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

/// The journal that a kubelet's node has: through `/proc`, so that the mount namespace does not matter; else our own's.
fn journal_of(kubelets: &[u32]) -> Option<PathBuf> {
    let roots = kubelets.iter().map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
    roots.chain(["/".into()]).find_map(|root| journal::below(&root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reported;
    use tracer_node::cgroup::PodProcess;

    const POD: &str = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";

    #[test]
    fn a_pods_process_is_not_believed_to_be_the_kubelet() {
        let process = |prober: Option<&str>, pod: Option<&str>| Process {
            pid: 7,
            netns: None,
            prober: prober.map(Into::into),
            pod: pod.map(|uid| PodProcess { uid: uid.into(), container: None }),
        };
        assert!(can_be(&process(Some("kubelet"), None), "0::/docker/1\n"), "also in a container that is no pod");
        assert!(!can_be(&process(None, None), "0::/\n"), "another name");
        let in_a_pod = process(Some("kubelet"), Some(POD));
        assert!(!can_be(&in_a_pod, "0::/system.slice/tracer.service\n"));
        assert!(!can_be(&in_a_pod, "0::/kubepods/pod5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e12/a\n"), "ours is another pod");
        assert!(
            can_be(&in_a_pod, &format!("0::/\n4:memory:/kubepods/pod{POD}/a/kubepods/podb/c\n")),
            "the whole node is"
        );
    }

    #[test]
    fn a_log_without_outcomes_is_not_named_as_a_source_of_them() {
        let (quiet, loud) =
            (|| reported("kubelet --v=0", &[]).expect("reported"), || reported("kubelet -v=1", &[]).expect("reported"));
        assert_eq!((lack_of(&[]), lack_of(&[loud()]), lack_of(&[quiet(), loud()])), (None, None, None));
        let lack = lack_of(&[quiet(), quiet()]).expect("none writes them");
        assert!(lack.starts_with("the kubelet (pid 7) logs with verbosity 0"), "{lack}");
        assert!(lack.contains("start the kubelet with -v=1"), "{lack}");
        let log = KubeletLog::File("/k.log".into());
        assert_eq!(log.describe(None, None), "probe outcomes (kubelet log /k.log)");
        let entry = log.describe(Some(&lack), None);
        assert_eq!(entry, format!("no probe outcomes, failed sandboxes only (kubelet log /k.log): {lack}"));
        let exposed = log.describe(None, Some("the kubelet (pid 7) logs"));
        assert_eq!(exposed, "probe outcomes, which pods can forge (kubelet log /k.log): the kubelet (pid 7) logs");
    }

    #[test]
    fn what_cannot_be_followed_is_reported() {
        let words = |target: &str| not_followed(&Ok(target.into()));
        assert!(words("pipe:[7]").starts_with("is a pipe"));
        assert!(words("socket:[7]").contains("no systemd journal"));
        assert!(words("/dev/null").starts_with("leads to /dev/null,"));
        let denied = not_followed(&Err(io::Error::from_raw_os_error(libc::EACCES)));
        assert_eq!(denied, "cannot be looked at (Permission denied)");
    }

    #[test]
    fn nothing_is_reported_of_what_is_no_kubelet() {
        assert_eq!(lack(&["k3s-server".into(), "no-such-kubelet".into()]), None);
        assert_eq!(unfollowed(&["no-such-kubelet".into()]), None);
    }
}
