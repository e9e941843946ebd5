//! Reads the sources again: files and links when they change, settings every second, the rest every ten seconds and on
//! request.
//!
//! This runs on a thread of its own, so that it never delays the event stream. The thread sleeps in `poll(2)` on the
//! node's link changes and on a pipe. It stops when the pipe is closed.

mod flushes;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use self::flushes::Flushes;
use super::background::Supervisor;
use super::cluster::{Cluster, SentEvents};
use super::files::{self, FileError, Stamp};
use super::pace::ReadingPace;
use super::sent::{Closed, Sent};
use super::{Listed, NodeNetns, Snapshot, SourceConfig, read_node};
use tracer_model::event::{ListFile, ListTrouble, Netns, ObservationKind, Pod};
use tracer_node::clock::thread_cpu_ns;
use tracer_node::links::{self, LinkWatch, LinksChanged};
use tracer_node::{enter, settings};

const FILES_EVERY: Duration = Duration::from_secs(1);
const NODE_EVERY: Duration = Duration::from_secs(10);
/// Changes within this time are read once, at its end.
const SETTLE: Duration = Duration::from_millis(20);
/// How many times links are read again because one went down meanwhile.
const READ_AGAIN: usize = 5;
/// Bytes in the pipe: the node changed, or the view of the API did.
const NODE: u8 = 0;
const VIEW: u8 = 1;

/// Sends observations that differ from those of `snapshot`, until `tx` closes or the future is dropped.
///
/// `refresh` asks for another reading of pods and NodePorts soon: a namespace or a listener began or ended.
pub fn watch(
    config: SourceConfig,
    snapshot: Snapshot,
    refresh: Arc<Notify>,
    tx: Sender<ObservationKind>,
    supervisor: Supervisor,
) -> impl Future<Output = ()> {
    // Subscribe now: no later reading shows what is removed before the thread runs.
    let flushes = snapshot.node.as_ref().map(Flushes::open).unwrap_or_default();
    async move {
        let mut cluster = config.cluster.clone();
        let to_thread = tx.clone();
        let start = |(wake, woken): (UnixStream, UnixStream)| {
            let run = move || {
                enter::enter_on_this_thread();
                Watcher::new(config, snapshot, flushes, to_thread).run(&woken);
            };
            wake.set_nonblocking(true).and(supervisor.thread("sources", run)).map(|()| wake)
        };
        let mut wake = match UnixStream::pair().and_then(start) {
            Ok(wake) => wake,
            Err(error) => {
                return tracing::error!("tracer does not notice changes of pods, links, rules and files: {error}");
            }
        };
        loop {
            tokio::select! {
                () = refresh.notified() => {
                    // If the pipe is full, the thread is awake already.
                    let _ = wake.write(&[NODE]);
                }
                () = changed(&mut cluster) => {
                    let _ = wake.write(&[VIEW]);
                }
                () = tx.closed() => return,
            }
        }
    }
}

/// Waits until the cluster has another view.
async fn changed(cluster: &mut Option<Cluster>) {
    match cluster {
        Some(cluster) => cluster.changed().await,
        None => std::future::pending().await,
    }
}

struct Watcher {
    config: SourceConfig,
    sent: Sent,
    listed: Listed,
    events: SentEvents,
    node: Option<NodeNetns>,
    /// The namespace of which the last reading got every NodePort table.
    tables_of: Option<Netns>,
    links: Option<LinkWatch>,
    flushes: Flushes,
    discovered: Vec<Pod>,
    problems: Vec<String>,
    pace: ReadingPace,
    node_due: Instant,
    files_due: Instant,
    links_due: Option<Instant>,
}

impl Watcher {
    fn new(config: SourceConfig, snapshot: Snapshot, flushes: Flushes, tx: Sender<ObservationKind>) -> Self {
        let now = Instant::now();
        let mut watcher = Self {
            config,
            sent: Sent::new(snapshot.observations, tx),
            listed: snapshot.listed,
            events: SentEvents::default(),
            node: None,
            tables_of: snapshot.tables_of,
            links: None,
            flushes,
            discovered: Vec::new(),
            problems: snapshot.problems,
            pace: ReadingPace::new(now),
            // Something may have changed between the snapshot and the subscription, so read at once.
            node_due: now,
            files_due: now + FILES_EVERY,
            links_due: None,
        };
        watcher.follow(snapshot.node);
        // A link may have gone down and up before the subscription.
        watcher.sent.forget_links();
        watcher
    }

    fn run(mut self, woken: &UnixStream) {
        if woken.set_nonblocking(true).is_ok() {
            while self.step(woken).is_ok() {}
        }
    }

    fn step(&mut self, woken: &UnixStream) -> Result<(), Closed> {
        self.sleep(woken)?;
        self.take_link_changes();
        self.flushes.read_reports();
        if was_woken(woken)? {
            self.read_node_settled();
        }
        self.read_due()
    }

    fn read_node_settled(&mut self) {
        self.node_due = self.node_due.min(self.pace.next.max(Instant::now() + SETTLE));
    }

    fn read_due(&mut self) -> Result<(), Closed> {
        if self.links_due.is_some_and(|due| Instant::now() >= due) {
            self.links_due = None;
            self.read_links()?;
        }
        if self.flushes.due().is_some_and(|due| Instant::now() >= due) {
            for flushed in self.flushes.take() {
                self.sent.send_once(ObservationKind::RulesFlushed(Box::new(flushed)))?;
                self.read_node_soon();
            }
        }
        if Instant::now() >= self.files_due {
            self.files_due = Instant::now() + FILES_EVERY;
            self.read_files()?;
            self.read_settings()?;
        }
        self.read_cluster()?;
        if Instant::now() >= self.node_due {
            self.read_node()?;
        }
        Ok(())
    }

    fn read_cluster(&mut self) -> Result<(), Closed> {
        let Some(cluster) = self.config.cluster.as_mut().filter(|cluster| cluster.has_changed()) else { return Ok(()) };
        let view = cluster.take();
        let events = self.events.new_of(&view);
        self.listed.take(cluster, view);
        // If the node is due, it is read next. Until its first reading, the namespaces of pods are unknown here.
        if Instant::now() < self.node_due {
            self.send_pods()?;
        }
        events.into_iter().try_for_each(|kind| self.sent.send_once(kind))
    }

    fn send_pods(&mut self) -> Result<(), Closed> {
        self.sent.send(self.listed.pods_with(self.discovered.clone()))
    }

    /// Reads the node as soon as the pace allows: NodePorts are named after Services, which a controller may write at any
    /// rate.
    fn read_node_soon(&mut self) {
        self.node_due = self.node_due.min(self.pace.next);
    }

    fn sleep(&self, woken: &UnixStream) -> Result<(), Closed> {
        let due =
            self.links_due.into_iter().chain(self.flushes.due()).fold(self.node_due.min(self.files_due), Instant::min);
        let wait = due.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let mut fds = vec![PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
        let links = self.links.as_ref().map(LinkWatch::as_fd);
        fds.extend(links.into_iter().chain(self.flushes.fds()).map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(_) => Err(Closed),
        }
    }

    /// Takes in changes of links and addresses. Links and the node are then read: a link often begins and ends with a
    /// pod. If a link went down, the links are reported even if they are as before, because no event reports that it is
    /// up again.
    fn take_link_changes(&mut self) -> LinksChanged {
        let changed = self.links.as_ref().map(LinkWatch::changed).unwrap_or_default();
        if changed.down {
            self.sent.forget_links();
        }
        if changed.any {
            self.links_due.get_or_insert(Instant::now() + SETTLE);
            self.read_node_settled();
        }
        changed
    }

    /// Reads the links. A link that went down during the reading may be up in it, so they are then read again, a few
    /// times at most.
    fn read_links(&mut self) -> Result<(), Closed> {
        let read = |node: &NodeNetns| links::read(node).map(|links| links::to_observation(node, &links));
        let mut links = self.node.as_ref().map(read);
        for _ in 0..READ_AGAIN {
            if !self.take_link_changes().down {
                break;
            }
            links = self.node.as_ref().map(read);
        }
        match links {
            Some(Ok(links)) => self.sent.send(ObservationKind::Links(links)),
            // The prober through which they are read has ended: find another.
            _ => {
                self.read_node_soon();
                Ok(())
            }
        }
    }

    /// Reads the files that changed. If one is broken, its previous contents stay known: it may be half written.
    fn read_files(&mut self) -> Result<(), Closed> {
        let changed = |path: &PathBuf, stamp: &mut Option<Stamp>| {
            let before = std::mem::replace(stamp, Stamp::of(path));
            before != *stamp
        };
        let pods = self.config.pods.as_ref().filter(|path| changed(path, &mut self.listed.pods_stamp));
        let pods = pods.map(|path| files::read_pods(path));
        if let Some(pods) = self.or_report(ListFile::Pods, pods)? {
            self.listed.pods = pods;
            self.send_pods()?;
        }
        let services = self.config.services.as_ref().filter(|path| changed(path, &mut self.listed.services_stamp));
        let services = services.map(|path| files::read_services(path));
        if let Some(services) = self.or_report(ListFile::Services, services)? {
            self.listed.services = Some(services);
            self.read_node_soon();
            self.listed.services().into_iter().try_for_each(|kind| self.sent.send(kind))?;
        }
        Ok(())
    }

    /// Reads the settings, since no event reports a change, and verdicts quote them.
    fn read_settings(&mut self) -> Result<(), Closed> {
        match self.node.as_ref().map(settings::read) {
            Some(Ok(settings)) => self.sent.send(ObservationKind::NodeSettings(settings)),
            // The process through which they are read has ended. The next reading of the node finds another.
            _ => Ok(()),
        }
    }

    /// Returns what was read of a file, and reports when the file becomes unreadable or readable again.
    fn or_report<T>(&mut self, list: ListFile, read: Option<Result<T, FileError>>) -> Result<Option<T>, Closed> {
        let Some(read) = read else { return Ok(None) };
        let problem = read.as_ref().err().map(|error| format!("{error}; tracer keeps the {list} read before"));
        if let Some(problem) = &problem {
            tracing::warn!("{problem}");
        }
        let trouble = ObservationKind::ListTrouble(ListTrouble { list, problem });
        if read.is_err() || self.sent.has(&trouble) {
            self.sent.send(trouble)?;
        }
        Ok(read.ok())
    }

    fn read_node(&mut self) -> Result<(), Closed> {
        let used = thread_cpu_ns();
        let view = read_node(&self.config, &mut self.listed);
        let now = Instant::now();
        self.pace.read(now, Duration::from_nanos(thread_cpu_ns().saturating_sub(used)));
        self.node_due = self.listed.kubelet.again.map_or(now + NODE_EVERY, |again| again.max(self.pace.next));
        self.warn(view.problems);
        self.follow(view.node);
        if self.links.is_none() {
            // Without a subscription, no message reports a changed link.
            self.sent.forget_links();
        }
        let emptied = if view.tables_of.is_some() { self.sent.emptied(&view.observations) } else { Vec::new() };
        let newly_filled = self.sent.newly_filled(&view.observations, self.tables_of);
        self.tables_of = view.tables_of;
        for kind in emptied.into_iter().chain(newly_filled).chain(view.observations) {
            self.sent.send(kind)?;
        }
        self.discovered = view.pods;
        self.send_pods()
    }

    /// Subscribes to changes of the node's links, routes and rules, again if the prober is in another namespace now.
    fn follow(&mut self, node: Option<NodeNetns>) {
        let netns = |node: &Option<NodeNetns>| node.as_ref().map(|node| node.netns);
        if netns(&self.node) != netns(&node) {
            self.links = node.as_ref().and_then(|node| or_warn(LinkWatch::open(node)));
        }
        self.flushes.follow(node.as_ref());
        self.node = node;
    }

    fn warn(&mut self, problems: Vec<String>) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!("{problem}");
        }
        self.problems = problems;
    }
}

fn or_warn<T, E: std::fmt::Display>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!("{error}")).ok()
}

/// Empties the pipe, and returns whether the node must be read. The pipe ends when the receiver is gone.
fn was_woken(mut woken: &UnixStream) -> Result<bool, Closed> {
    let mut bytes = [0; 64];
    let mut any = false;
    loop {
        match woken.read(&mut bytes) {
            Ok(0) => return Err(Closed),
            Ok(count) => any |= bytes.iter().take(count).any(|byte| *byte == NODE),
            Err(_) => return Ok(any),
        }
    }
}

#[cfg(test)]
mod tests;
