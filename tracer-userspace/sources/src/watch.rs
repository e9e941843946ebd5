//! Keeps the facts fresh: files when they change, links as they change, settings every second, the rest every ten
//! seconds and on request.
//!
//! A thread of its own does the reading, so that nothing here ever holds up the event stream. It sleeps in
//! `poll(2)` on the node's link changes and on a pipe; the pipe's end is the sign to stop.

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
use super::cluster::{Cluster, Heard, View};
use super::files::{self, FileError, Stamp};
use super::pace::ReadingPace;
use super::sent::{Closed, Sent};
use super::{
    Listed, NodeNetns, Snapshot, SourceConfig, name_node_ports, pods_observation, read_node, services_observation,
};
use tracer_model::event::{ListFile, ListTrouble, Netns, ObservationKind, Pod};
use tracer_node::clock::thread_cpu_ns;
use tracer_node::links::{self, LinkWatch, LinksChanged};
use tracer_node::{enter, settings};

const FILES_EVERY: Duration = Duration::from_secs(1);
const NODE_EVERY: Duration = Duration::from_secs(10);
/// A burst of changes is read once, at its end.
const SETTLE: Duration = Duration::from_millis(20);
/// How often links are read once more because one went down meanwhile.
const READ_AGAIN: usize = 5;
/// Bytes of the pipe: the node changed; the view of an API did.
const NODE: u8 = 0;
const VIEW: u8 = 1;

/// Sends facts that differ from those of `snapshot`, until `tx` closes or the future is dropped.
///
/// `refresh` asks for pods and NodePorts to be read again soon: when a namespace or a listener came or went.
pub fn watch(
    config: SourceConfig,
    snapshot: Snapshot,
    refresh: Arc<Notify>,
    tx: Sender<ObservationKind>,
    supervisor: Supervisor,
) -> impl Future<Output = ()> {
    // Now: what is removed before the thread runs shows itself in no later reading.
    let flushes = snapshot.node.as_ref().map(Flushes::open).unwrap_or_default();
    let cluster = config.cluster.clone();
    let watcher = move |tx| Watcher::new(config, snapshot, flushes, tx);
    keep_fresh(watcher, cluster, refresh, tx, supervisor)
}

async fn keep_fresh(
    watcher: impl FnOnce(Sender<ObservationKind>) -> Watcher + Send + 'static,
    mut cluster: Option<Cluster>,
    refresh: Arc<Notify>,
    tx: Sender<ObservationKind>,
    supervisor: Supervisor,
) {
    let Ok((mut wake, woken)) = UnixStream::pair() else {
        tracing::error!("sources are not kept fresh: no socket pair to be had");
        return;
    };
    let to_thread = tx.clone();
    let run = move || {
        enter::enter_on_this_thread();
        watcher(to_thread).run(&woken);
    };
    let thread = supervisor.thread("sources", run);
    if let Err(error) = thread.and(wake.set_nonblocking(true)) {
        tracing::error!("sources are not kept fresh: no thread: {error}");
        return;
    }
    loop {
        tokio::select! {
            () = refresh.notified() => {
                // A full pipe has woken it already.
                let _ = wake.write(&[NODE]);
            }
            // What changed is looked for at every wake-up.
            () = changed(&mut cluster) => {
                let _ = wake.write(&[VIEW]);
            }
            () = tx.closed() => return,
        }
    }
}

/// Waits until the cluster has something new to say.
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
    /// Events that were handed on.
    heard: Heard,
    node: Option<NodeNetns>,
    /// The namespace of which every NodePort table could be read, the last time.
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
            sent: Sent::new(snapshot.facts, tx),
            listed: snapshot.listed,
            heard: Heard::default(),
            node: None,
            tables_of: snapshot.tables_of,
            links: None,
            flushes,
            discovered: Vec::new(),
            problems: snapshot.problems,
            pace: ReadingPace::new(now),
            // What changed between the snapshot and the subscription is read at once.
            node_due: now,
            files_due: now + FILES_EVERY,
            links_due: None,
        };
        watcher.follow(snapshot.node);
        // A link may have gone down and up before anybody subscribed.
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
        self.hear_links();
        self.flushes.hear();
        if was_woken(woken)? {
            self.read_node_settled();
        }
        self.read_due()
    }

    fn read_node_settled(&mut self) {
        self.node_due = self.node_due.min(self.pace.next().max(Instant::now() + SETTLE));
    }

    fn read_due(&mut self) -> Result<(), Closed> {
        if self.links_due.is_some_and(|due| Instant::now() >= due) {
            self.links_due = None;
            self.read_links()?;
        }
        if self.flushes.due().is_some_and(|due| Instant::now() >= due) {
            let flushed = self.flushes.take().into_iter();
            flushed.map(Box::new).map(ObservationKind::RulesFlushed).try_for_each(|kind| self.sent.send_once(kind))?;
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

    /// The cluster's view, if it is another: it took the place of what the cluster reported before.
    fn read_cluster(&mut self) -> Result<(), Closed> {
        let Some(cluster) = self.config.cluster.as_mut().filter(|cluster| cluster.has_changed()) else { return Ok(()) };
        let view = cluster.take();
        let reported = self.heard.facts(&view);
        self.read_listing(view)?;
        reported.into_iter().try_for_each(|kind| self.sent.send_once(kind))
    }

    fn read_listing(&mut self, view: View) -> Result<(), Closed> {
        let Some(cluster) = &self.config.cluster else { return Ok(()) };
        let before = self.listed.listing.services.clone();
        self.listed.listing.take(cluster, view);
        if self.listed.listing.services != before {
            self.read_node_soon();
            self.send_services()?;
        }
        self.send_pods()
    }

    fn send_pods(&mut self) -> Result<(), Closed> {
        if Instant::now() >= self.node_due {
            // The node is read next, at first for the first time: until then the pods' namespaces are not known here.
            return Ok(());
        }
        self.sent.send(pods_observation(self.discovered.clone(), &self.listed.listing))
    }

    /// As soon as the pace allows: NodePorts are named after Services, and any controller can write those all the time.
    fn read_node_soon(&mut self) {
        self.node_due = self.node_due.min(self.pace.next());
    }

    fn send_services(&mut self) -> Result<(), Closed> {
        services_observation(&self.listed.listing).map_or(Ok(()), |kind| self.sent.send(kind))
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

    /// Links changed, or their addresses: they are to be read, and the node, as a link that comes or goes is often a
    /// pod that does. A link that was down for a moment only is up again in no other event: then they are reported even
    /// if they are as before.
    fn hear_links(&mut self) -> LinksChanged {
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

    /// A link that went down while they were read may be up in them: they are read once more, so often at most.
    fn read_links(&mut self) -> Result<(), Closed> {
        let read = |node: &NodeNetns| links::read(node).map(|links| links::to_observation(node, &links));
        let mut links = self.node.as_ref().map(read);
        for _ in 0..READ_AGAIN {
            if !self.hear_links().down {
                break;
            }
            links = self.node.as_ref().map(read);
        }
        match links {
            Some(Ok(links)) => self.sent.send(ObservationKind::Links(links)),
            // The prober it is read through ended: look for another.
            _ => {
                self.read_node_soon();
                Ok(())
            }
        }
    }

    /// A file that is broken for a moment, while it is written, leaves what was known.
    fn read_files(&mut self) -> Result<(), Closed> {
        let changed = |path: &PathBuf, stamp: &mut Option<Stamp>| {
            let before = std::mem::replace(stamp, Stamp::of(path));
            before != *stamp
        };
        let pods = self.config.pods.as_ref().filter(|path| changed(path, &mut self.listed.pods_stamp));
        let pods = pods.map(|path| files::read_pods(path));
        if let Some(pods) = self.or_report(ListFile::Pods, pods)? {
            self.listed.listing.pods = pods;
            self.sent.send(pods_observation(self.discovered.clone(), &self.listed.listing))?;
        }
        let services = self.config.services.as_ref().filter(|path| changed(path, &mut self.listed.services_stamp));
        let services = services.map(|path| files::read_services(path));
        if let Some(services) = self.or_report(ListFile::Services, services)? {
            self.listed.listing.services = Some(services);
            self.read_node_soon();
            self.send_services()?;
        }
        Ok(())
    }

    /// No event tells that a setting was changed, and a verdict quotes it.
    fn read_settings(&mut self) -> Result<(), Closed> {
        match self.node.as_ref().map(settings::read) {
            Some(Ok(settings)) => self.sent.send(ObservationKind::NodeSettings(settings)),
            // The process through which it is read ended: the next reading of the node finds another.
            _ => Ok(()),
        }
    }

    /// What a file gave, if it was read; that it cannot be read is reported, and that it can be again.
    fn or_report<T>(&mut self, list: ListFile, read: Option<Result<T, FileError>>) -> Result<Option<T>, Closed> {
        let Some(read) = read else { return Ok(None) };
        let problem = read.as_ref().err().map(|error| format!("{error}; tracer keeps the {} read before", list.name()));
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
        let mut view = read_node(&self.config, &mut self.listed.kubelet);
        let tables_of = view.tables_of();
        name_node_ports(&mut view.facts, self.listed.listing.services.as_deref().unwrap_or_default());
        let now = Instant::now();
        self.pace.read(now, Duration::from_nanos(thread_cpu_ns().saturating_sub(used)));
        self.node_due = self.listed.kubelet.again.map_or(now + NODE_EVERY, |again| again.max(self.pace.next()));
        self.tell(view.problems);
        self.follow(view.node);
        if self.links.is_none() {
            // Without this subscription, no message says that a link changed.
            self.sent.forget_links();
        }
        let emptied = if view.tables_complete { self.sent.emptied(&view.facts) } else { Vec::new() };
        let newly_filled = self.sent.newly_filled(&view.facts, self.tables_of);
        self.tables_of = tables_of;
        for kind in emptied.into_iter().chain(newly_filled).chain(view.facts) {
            self.sent.send(kind)?;
        }
        self.discovered = view.pods;
        self.listed.listing.take_of_kubelet(view.of_kubelet);
        self.sent.send(pods_observation(self.discovered.clone(), &self.listed.listing))
    }

    /// Subscribes to changes of the node's links, routes and rules, again if the prober came back in another namespace.
    fn follow(&mut self, node: Option<NodeNetns>) {
        let netns = |node: &Option<NodeNetns>| node.as_ref().map(|node| node.netns);
        if netns(&self.node) != netns(&node) {
            self.links = node.as_ref().and_then(|node| or_warn(LinkWatch::open(node)));
        }
        if self.flushes.netns != node.as_ref().map(|node| node.netns) {
            self.flushes = node.as_ref().map(Flushes::open).unwrap_or_default();
        }
        self.node = node;
    }

    fn tell(&mut self, problems: Vec<String>) {
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!("{problem}");
        }
        self.problems = problems;
    }
}

fn or_warn<T, E: std::fmt::Display>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(|error| tracing::warn!("{error}")).ok()
}

/// Empties the pipe; whether the node is to be read. Its end means that nobody waits for facts any more.
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
