//! The kubelet's log as observations: a thread follows the log and sends each line that it understands. The kubelet's
//! Events in the cluster API say the same less precisely; `sources/cluster` reads them.
//!
//! The log is the one that was named, or the file that the kubelet's flags name, or the file or systemd journal that its
//! own stderr leads to.

mod entry;
mod event;
mod fields;
mod follow;
pub(super) mod fuzzing;
mod joiner;
mod journal;
mod line;
pub(super) mod process;
pub(crate) mod redact;
mod text;
mod verbosity;
mod words;

use std::convert::Infallible;
use std::fmt::Debug;
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
use tracer_node::procfs::{self, Process};
use tracer_terminal::error::os_message;

/// A log as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedLog {
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
pub struct KubeletLog {
    /// Absent: the file that the flags of a process with one of these names give, or the file or journal that its
    /// stderr or stdout leads to.
    named: Option<NamedLog>,
    /// Names of the processes to read in a log that several processes write.
    names: Vec<String>,
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
    /// The log that was named, else the log of a running kubelet if tracer can follow it. If no kubelet runs yet,
    /// tracer looks for its log later.
    pub fn find(named: Option<&NamedLog>, names: &[String]) -> Option<Self> {
        let has_own = || {
            let kubelets = kubelets(names);
            kubelets.is_empty() || log_of(&kubelets).is_some()
        };
        (named.is_some() || has_own()).then(|| Self { named: named.cloned(), names: names.to_vec() })
    }

    /// Describes it for the list of sources: also what its kubelet [lacks](lack), and why pods can [forge](exposure)
    /// its lines.
    pub fn describe(&self, lack: Option<&str>, exposure: Option<&str>) -> String {
        let what = match (&self.named, self.locate()) {
            (Some(NamedLog::File(path)), _) => format!("kubelet log {}", path.display()),
            (_, Some(Place::Journal(path))) => format!("the kubelet's lines in the journal {}", path.display()),
            (_, Some(Place::Text(path))) if path.components().any(|it| it.as_os_str() == "root") => {
                format!("the kubelet's log {}", path.display())
            }
            (_, Some(Place::Text(_))) => "the kubelet's stderr".to_owned(),
            (Some(NamedLog::Journal(_)), None) => {
                "the kubelet's lines in the journal, which is not there yet".to_owned()
            }
            (None, None) => "the kubelet's own log, once it runs".to_owned(),
        };
        match (lack, exposure) {
            (None, None) => format!("probe outcomes ({what})"),
            (None, Some(exposure)) => format!("probe outcomes, which pods can forge ({what}): {exposure}"),
            (Some(lack), _) => format!("no probe outcomes, failed sandboxes only ({what}): {lack}"),
        }
    }

    fn locate(&self) -> Option<Place> {
        match &self.named {
            Some(NamedLog::File(path)) => Some(Place::Text(path.clone())),
            Some(NamedLog::Journal(Some(directory))) => journal::within(directory).map(Place::Journal),
            Some(NamedLog::Journal(None)) => journal_of(&kubelets(&self.names)).map(Place::Journal),
            None => log_of(&kubelets(&self.names)),
        }
    }

    /// Follows the log from its end until the receiver is gone. Retries a log that cannot be read.
    pub fn follow(self, tx: Sender<ObservationKind>, supervisor: &Supervisor) {
        // The log is opened before tracer reports that it follows it. So no line after that report is missed.
        let follower = LogFollower::opened(self);
        let run = move || follower.run(line::parse, &tx);
        if let Err(error) = supervisor.thread("kubelet-log", run) {
            tracing::error!("cannot start the thread that follows the kubelet's log: {error}");
        }
    }
}

/// Why no kubelet among processes of these names logs the outcomes of probes, and how to fix that; `None` if one of
/// them may.
pub fn lack(names: &[String]) -> Option<String> {
    lack_of(&loggings(names).collect::<Result<Vec<_>, _>>().ok()?)
}

/// Why a pod can forge log lines of a kubelet among processes of these names.
pub fn exposure(names: &[String]) -> Option<String> {
    loggings(names).flatten().find_map(|it| Some(format!("the kubelet (pid {}) {}", it.pid, it.exposure()?)))
}

/// The log settings of the processes that are a kubelet and nothing else (not k3s).
fn loggings(names: &[String]) -> impl Iterator<Item = Result<KubeletLogging, KubeletLoggingError>> {
    let names: Vec<String> = names.iter().filter(|name| *name == verbosity::NAME).cloned().collect();
    kubelets(&names).into_iter().map(KubeletLogging::of)
}

/// What the first kubelet lacks; `None` if one of them lacks nothing, because that one may write the log.
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

/// The fix if the kubelet's stderr leads to nothing that tracer can follow.
pub const TO_NAME: &str = "name its log (--kubelet-log FILE), or take its Events (--api-events NAMESPACE)";

fn stderr(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/fd/2"))
}

/// Why the target of a descriptor cannot be followed, in words that follow the descriptor's name.
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
    let own = procfs::own_cgroups();
    procfs::named(names).into_iter().filter(|it| can_be(it, &own) && procfs::is_root(it.pid)).map(|it| it.pid).collect()
}

/// Whether a process can be the node's kubelet, by its name and its pod. tracer trusts the log of no other.
fn can_be(process: &Process, own: &str) -> bool {
    process.prober.is_some() && procfs::can_be_of_node(process, own)
}

/// The first log of these kubelets that can be followed.
fn log_of(kubelets: &[u32]) -> Option<Place> {
    let by_flags = kubelets.iter().filter_map(|pid| {
        let path = verbosity::log_file(&process::arguments(*pid))?;
        Some(Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").ok()?))
    });
    let paths = descriptors(kubelets);
    let mut files = by_flags.chain(paths.iter().cloned());
    let file = files.find(|path| fs::metadata(path).is_ok_and(|it| it.is_file()));
    let journal = || paths.iter().any(|path| is_socket(path)).then(|| journal_of(kubelets)).flatten();
    file.map(Place::Text).or_else(|| journal().map(Place::Journal))
}

/// The stderr and stdout of each kubelet.
fn descriptors(kubelets: &[u32]) -> Vec<PathBuf> {
    let of = |pid: &u32| [2, 1].map(|fd| PathBuf::from(format!("/proc/{pid}/fd/{fd}")));
    kubelets.iter().flat_map(of).collect()
}

/// systemd gives its services a socket to journald as stderr.
fn is_socket(descriptor: &Path) -> bool {
    fs::read_link(descriptor).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

/// The journal as a kubelet sees it, through `/proc`, so that its mount namespace does not matter; else our own.
fn journal_of(kubelets: &[u32]) -> Option<PathBuf> {
    let roots = kubelets.iter().map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
    roots.chain(["/".into()]).find_map(|root| journal::below(&root))
}

/// Reads a log of one kind.
trait LogReader: Debug {
    /// Reads the new lines; ends early if `take` returns false.
    fn read(&mut self, take: &mut dyn FnMut(&str) -> bool) -> io::Result<()>;

    /// How far it was read.
    fn at(&self) -> u64;

    /// Continues at this place.
    fn resume(&mut self, at: u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reported;
    use tracer_node::cgroup::PodProcess;

    const POD: &str = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";

    #[test]
    fn a_process_in_a_pod_is_not_taken_for_the_kubelet() {
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
        let other_pod = "0::/kubepods/pod5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e12/a\n";
        assert!(!can_be(&in_a_pod, other_pod), "tracer runs in another pod");
        let same_pod = format!("0::/\n4:memory:/kubepods/pod{POD}/a/kubepods/podb/c\n");
        assert!(can_be(&in_a_pod, &same_pod), "the whole node is in the pod");
    }

    #[test]
    fn a_log_without_outcomes_is_no_source_of_outcomes() {
        let (quiet, loud) =
            (|| reported("kubelet --v=0", &[]).expect("reported"), || reported("kubelet -v=1", &[]).expect("reported"));
        assert_eq!((lack_of(&[]), lack_of(&[loud()]), lack_of(&[quiet(), loud()])), (None, None, None));
        let lack = lack_of(&[quiet(), quiet()]).expect("none writes them");
        assert!(lack.starts_with("the kubelet (pid 7) logs with verbosity 0"), "{lack}");
        assert!(lack.contains("start the kubelet with -v=1"), "{lack}");
        let log = KubeletLog::find(Some(&NamedLog::File("/k.log".into())), &[]).expect("a named log");
        assert_eq!(log.describe(None, None), "probe outcomes (kubelet log /k.log)");
        let entry = log.describe(Some(&lack), None);
        assert_eq!(entry, format!("no probe outcomes, failed sandboxes only (kubelet log /k.log): {lack}"));
        let exposed = log.describe(None, Some("the kubelet (pid 7) logs"));
        assert_eq!(exposed, "probe outcomes, which pods can forge (kubelet log /k.log): the kubelet (pid 7) logs");
    }

    #[test]
    fn the_reason_names_why_stderr_cannot_be_followed() {
        let words = |target: &str| not_followed(&Ok(target.into()));
        assert!(words("pipe:[7]").starts_with("is a pipe"));
        assert!(words("socket:[7]").contains("no systemd journal"));
        assert!(words("/dev/null").starts_with("leads to /dev/null,"));
        let denied = not_followed(&Err(io::Error::from_raw_os_error(libc::EACCES)));
        assert_eq!(denied, "cannot be looked at (Permission denied)");
    }

    #[test]
    fn processes_with_other_names_have_no_log_problem() {
        assert_eq!(lack(&["k3s-server".into(), "no-such-kubelet".into()]), None);
        assert_eq!(unfollowed(&["no-such-kubelet".into()]), None);
    }
}
