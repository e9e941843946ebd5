//! Reads a log as it grows, and reopens it when another file replaces it.

use std::fmt::Debug;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc::Sender;

use super::joiner::Joiner;
use super::journal::Journal;
use super::line::Now;
use super::process::open_file;
use super::text::TextFile;
use super::{KubeletLog, LogReader, Place};
use tracer_model::event::ObservationKind;
use tracer_node::clock;

/// How often the follower checks for a closed receiver, and for changes that inotify does not report, in milliseconds.
const POLL_MS: u16 = 1000;
/// After what time a log that was just closed is looked for a second time.
const SOON: Duration = Duration::from_secs(1);
/// How often a missing log is looked for, and how long a log may be without its name until another one is looked for.
const AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct LogFollower {
    log: KubeletLog,
    open: Option<Open>,
    /// An older file is read from its end: its lines are old.
    since: SystemTime,
    /// The file that was closed last, and how far it was read: a restarted kubelet may go on writing to it.
    left: Option<((u64, u64), u64)>,
    /// When to look for the log again. Moves on while the open file has its name.
    due: Instant,
    /// It was looked for since it was closed.
    tried: bool,
    /// A warning that it cannot be read was already logged.
    warned: bool,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    identity: (u64, u64),
    changes: Inotify,
    reader: Box<dyn LogReader + Send>,
}

impl LogFollower {
    /// Opens the log, if it exists.
    pub(super) fn opened(log: KubeletLog) -> Self {
        let now = (SystemTime::now(), Instant::now());
        let mut follower = Self { log, open: None, since: now.0, left: None, due: now.1, tried: false, warned: false };
        follower.open();
        follower
    }

    /// Follows the log until the receiver is gone.
    pub(super) fn run(mut self, parse: fn(&str, Now) -> Option<ObservationKind>, tx: &Sender<ObservationKind>) {
        let mut joiner = Joiner::default();
        while !tx.is_closed() {
            if self.open.is_none() && Instant::now() >= self.due {
                self.open();
            }
            // Checked before the read: so a replaced file is read to its end.
            let replaced = self.is_replaced();
            let read = self.read(&mut |line| {
                let now = Now { boot_ns: clock::boot_ns(), boot_to_wall_ns: clock::boot_to_wall_ns() };
                let mut found = joiner.join(line).filter_map(|entry| parse(&entry, now));
                found.all(|kind| tx.blocking_send(kind).is_ok())
            });
            if read.is_err() || replaced {
                self.close(replaced);
            }
            if !replaced {
                self.wait();
            }
        }
    }

    /// Tries a log that was open before once more after a second: it may not be whole yet, or its kubelet not there.
    fn open(&mut self) {
        let is_first = !std::mem::replace(&mut self.tried, true) && self.left.is_some();
        self.due = Instant::now() + if is_first { SOON } else { AGAIN };
        let Some(place) = self.log.locate() else { return };
        match Open::new(&place, &self.log, self.since) {
            Ok(mut open) => {
                open.resume(self.left);
                (self.open, self.warned) = (Some(open), false);
            }
            Err(error) if !is_first && !self.warned => {
                self.warned = true;
                let path = place.path().display();
                tracing::warn!(
                    "the kubelet's log {path} cannot be read: {error}; outcomes of probes are not known until it can"
                );
            }
            Err(_) => {}
        }
    }

    /// Closes the log. If another file replaced it, that is opened at once.
    fn close(&mut self, replaced: bool) {
        self.left = self.open.take().map(|open| (open.identity, open.reader.at()));
        self.due = Instant::now() + if replaced { Duration::ZERO } else { SOON };
        self.tried = false;
    }

    fn read(&mut self, take: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), |open| open.reader.read(take))
    }

    /// Whether another file has its name now. During a rotation nothing has it for a moment: the open file is read on.
    /// If its folder is gone, too, such as `/proc/PID/fd` of a kubelet that ended, the log is elsewhere.
    fn is_replaced(&mut self) -> bool {
        let Some(open) = &self.open else { return false };
        let now = Instant::now();
        match std::fs::metadata(&open.path) {
            Ok(it) if (it.dev(), it.ino()) == open.identity => {
                self.due = now + AGAIN;
                false
            }
            Ok(_) => true,
            Err(_) => now >= self.due || !folder(&open.path).exists(),
        }
    }

    /// Waits for a change of the file, or for a new one in its folder, [`POLL_MS`] at most.
    fn wait(&self) {
        let timeout = PollTimeout::from(POLL_MS);
        let Some(open) = &self.open else {
            let _ = poll(&mut [], timeout);
            return;
        };
        let mut fds = [PollFd::new(open.changes.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).is_ok() {
            while open.changes.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Open {
    fn new(place: &Place, log: &KubeletLog, since: SystemTime) -> io::Result<Self> {
        let path = place.path();
        let file = open_file(path)?;
        let about = file.metadata()?;
        let changes = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        changes.add_watch(path, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF)?;
        // Shows at once that another file has the name. Without it, the next poll does.
        let _ = changes.add_watch(folder(path), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO);
        let reader: Box<dyn LogReader + Send> = match place {
            Place::Text(_) => Box::new(TextFile::new(file, since)?),
            Place::Journal(_) => Box::new(Journal::new(file, log.names.clone(), since)?),
        };
        Ok(Self { path: path.to_owned(), identity: (about.dev(), about.ino()), changes, reader })
    }

    /// Continues where the last read ended, if it is the same file.
    fn resume(&mut self, left: Option<((u64, u64), u64)>) {
        if let Some((_, at)) = left.filter(|(identity, _)| *identity == self.identity) {
            self.reader.resume(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use tokio::sync::mpsc;

    use super::*;
    use crate::kubelet::NamedLog;
    use crate::testing::Scratch;
    use tracer_model::event::Loss;

    fn follower(path: &Path) -> LogFollower {
        LogFollower::opened(KubeletLog { named: Some(NamedLog::File(path.to_owned())), names: Vec::new() })
    }

    /// Parses any line to an observation with the line's length.
    fn parse(line: &str, _: Now) -> Option<ObservationKind> {
        let count = line.len() as u64;
        Some(ObservationKind::Loss(Loss {
            where_: line.chars().take(8).collect(),
            count,
            from_boot_ns: 0,
            to_boot_ns: 0,
        }))
    }

    fn next(observations: &mut mpsc::Receiver<ObservationKind>) -> (String, u64) {
        match observations.blocking_recv() {
            Some(ObservationKind::Loss(loss)) => (loss.where_, loss.count),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn appended_lines_are_read_and_so_is_the_file_that_replaces_the_log() {
        let scratch = Scratch::new();
        let (path, moved) = (scratch.path("log"), scratch.path("log.1"));
        let append = |text: &str| {
            File::options().create(true).append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        append("old news\n");
        let (tx, mut observations) = mpsc::channel(4);
        let follower = follower(&path);
        let thread = std::thread::spawn(move || follower.run(parse, &tx));
        append("one\nhal");
        assert_eq!(next(&mut observations), ("one".into(), 3));
        append("f\n");
        assert_eq!(next(&mut observations), ("half".into(), 4));
        append(&format!("{}\nshort\n", "x".repeat(2 * super::super::text::MAX_LINE)));
        assert_eq!(next(&mut observations), ("short".into(), 5), "a line without end is skipped");
        // What is written between the rename and the next file is read from the old one.
        let mut old = File::options().append(true).open(&path).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        old.write_all(b"last\n").unwrap();
        assert_eq!(next(&mut observations), ("last".into(), 4));
        append("another file\n");
        assert_eq!(next(&mut observations), ("another ".into(), 12));
        drop(observations);
        thread.join().unwrap();
    }

    fn read(follower: &mut LogFollower) -> Vec<String> {
        let mut lines = Vec::new();
        follower
            .read(&mut |line| {
                lines.push(line.to_owned());
                true
            })
            .unwrap();
        lines
    }

    /// The folder of `/proc/PID/fd/2` goes with its kubelet. The next one may write to the same file.
    #[test]
    fn a_log_that_was_closed_is_read_on_and_one_that_replaced_it_from_its_start() {
        let scratch = Scratch::new();
        let (path, moved) = (PathBuf::from(scratch.file("fd/log", "")), scratch.path("moved"));
        let append = |text: &str| File::options().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        let mut follower = follower(&path);
        append("one\n");
        assert_eq!(read(&mut follower), ["one"]);
        std::fs::rename(folder(&path), &moved).unwrap();
        assert!(follower.is_replaced(), "its folder is gone");
        follower.close(true);
        follower.open();
        assert!(follower.open.is_none() && follower.tried && follower.due <= Instant::now() + SOON);
        std::fs::rename(&moved, folder(&path)).unwrap();
        append("two\n");
        follower.open();
        assert_eq!(read(&mut follower), ["two"], "nothing twice");
        std::fs::rename(&path, &moved).unwrap();
        assert!(!follower.is_replaced(), "no other file yet");
        std::fs::write(&path, "three\n").unwrap();
        assert!(follower.is_replaced());
        follower.close(true);
        assert!(follower.due <= Instant::now(), "it is opened at once");
        follower.open();
        assert_eq!(read(&mut follower), ["three"]);
    }
}
