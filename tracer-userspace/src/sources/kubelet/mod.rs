//! What the kubelet writes to its log, as facts: a thread follows the file and sends what it understands. Its Events
//! in the cluster API say the same less precisely; they come by `sources/cluster`.
//!
//! The file is the one that was named, or the kubelet's own stderr if that is a file. A kubelet that logs to the
//! journal is not followed: `--kubelet-log` can name a file that a log daemon writes.

mod event;
mod fields;
mod follow;
mod line;
mod words;

use std::path::{Path, PathBuf};

use tokio::sync::mpsc::Sender;

pub(super) use self::event::KubeletEvent;
use self::follow::Follower;
use super::Prober;
use super::procfs::find_probers;
use crate::event::Fact;

/// The log of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeletLog {
    /// The file that was named.
    Named(PathBuf),
    /// The stderr or stdout of a process of these names.
    Own(Vec<String>),
}

impl KubeletLog {
    /// The file that was named; else what a prober writes to, if that is a file, or if none runs yet.
    #[must_use]
    pub fn find(named: Option<&Path>, names: &[String], probers: &[Prober]) -> Option<Self> {
        let own = || Self::Own(names.to_vec());
        let expected = probers.is_empty() || of_probers(probers).is_some();
        named.map(|path| Self::Named(path.to_owned())).or_else(|| expected.then(own))
    }

    /// For the list of sources.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Named(path) => format!("probe outcomes (kubelet log {})", path.display()),
            Self::Own(_) => "probe outcomes (the kubelet's stderr)".to_owned(),
        }
    }

    /// Where it is now.
    fn locate(&self) -> Option<PathBuf> {
        match self {
            Self::Named(path) => Some(path.clone()),
            Self::Own(names) => of_probers(&find_probers(names)),
        }
    }

    /// Follows it from its end on, until nobody takes the facts. A log that cannot be read is looked for again.
    pub fn follow(self, tx: Sender<Fact>) {
        let run = move || Follower::new(self).run(line::parse, &tx);
        if let Err(error) = std::thread::Builder::new().name("kubelet-log".into()).spawn(run) {
            tracing::error!("the kubelet's log is not followed: no thread: {error}");
        }
    }
}

fn of_probers(probers: &[Prober]) -> Option<PathBuf> {
    probers.iter().flat_map(|prober| [2, 1].map(|fd| own_log(prober.pid, fd))).flatten().next()
}

/// The descriptor's file, if it is one: through `/proc`, so that the mount namespace does not matter.
fn own_log(pid: u32, fd: u8) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    std::fs::metadata(&path).is_ok_and(|it| it.is_file()).then_some(path)
}
