//! Writes to the cluster API, where a flag asks for it: an Event on the pod of a failed probe, and a condition of the
//! node. A [`Background`] does the work, so the pipeline never waits for the API.

mod condition;
mod explain;
mod note;
mod outage;
mod post;
mod rates;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use clap::Args;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use self::condition::{Faults, Keeper};
use self::explain::Explainer;
use self::note::Note;
use self::rates::Rates;
use crate::sink::Destination;
use tracer_model::decision::Decision;
use tracer_sources::Background;
use tracer_sources::cluster::{Access, ConnectError, Pace, client};
use tracer_terminal::error::Error;

/// Capacity of the queue of notes. A full queue drops the newest one and counts it.
const QUEUE: usize = 256;
/// How long the start waits for credentials.
const FIRST: Duration = Duration::from_secs(2);
/// How long the task still sends queued items after the end of the run.
const AT_END: Duration = Duration::from_secs(2);
/// How long the end of the run waits for the task. A credential plugin may block it for any time.
const PATIENCE: Duration = Duration::from_secs(3);

/// What `tracer run` writes to the cluster API: nothing without these flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writes to the cluster API")]
pub(super) struct ClusterFlags {
    /// Write an Event `ProbeFailureExplained` on the pod for each container and cause, with a count; only for proven and likely verdicts
    #[arg(long)]
    api_explain: bool,
    /// Set the condition `TracerNodeFault` of the node: true while a fault of the node itself is known
    #[arg(long)]
    api_condition: bool,
}

impl ClusterFlags {
    /// What they ask for, if anything. It needs access to the API.
    pub(super) fn output(self, access: Option<Access>, node_name: &str) -> Result<Option<ClusterOutput>, Error> {
        let Self { api_explain: explain, api_condition: condition } = self;
        if !explain && !condition {
            return Ok(None);
        }
        let flag = if explain { "--api-explain" } else { "--api-condition" };
        let api = "the cluster API: a pod's service account, or --kubeconfig PATH, and no --no-api";
        let access = access.ok_or_else(|| Error::Usage(format!("{flag} needs {api}")))?;
        Ok(Some(ClusterOutput { access, node_name: node_name.to_owned(), explain, condition }))
    }
}

/// What is to be written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOutput {
    pub access: Access,
    pub node_name: String,
    /// Events on pods.
    pub explain: bool,
    pub condition: bool,
}

/// The sending side: the pipeline queues items here.
#[derive(Debug)]
pub(super) struct ClusterSink {
    notes: Option<mpsc::Sender<Note>>,
    /// The condition is a state: only the newest observation of each kind counts.
    faults: Option<watch::Sender<Faults>>,
    dropped: Arc<AtomicU64>,
    reported: u64,
    end: watch::Sender<bool>,
    /// Disconnected when the task ends.
    running: Option<std_mpsc::Receiver<()>>,
}

/// The receiving side of a [`ClusterSink`].
struct Inbox {
    notes: Option<mpsc::Receiver<Note>>,
    faults: Option<watch::Receiver<Faults>>,
    dropped: Arc<AtomicU64>,
    end: watch::Receiver<bool>,
}

impl ClusterSink {
    /// Starts the task. An API that does not answer is no error.
    pub(super) fn start(config: ClusterOutput, background: &Background) -> Result<Self, ConnectError> {
        let (mut sink, inbox) = Self::new(&config);
        let (first, begun) = std_mpsc::sync_channel(1);
        sink.running = Some(background.run(move || async move { run(&config, inbox, &first).await })?);
        // A timeout means that a credential plugin is slow: that is no error.
        begun.recv_timeout(FIRST).unwrap_or(Ok(()))?;
        Ok(sink)
    }

    fn new(config: &ClusterOutput) -> (Self, Inbox) {
        let (notes, notes_in) = config.explain.then(|| mpsc::channel(QUEUE)).unzip();
        let (faults, faults_in) = config.condition.then(|| watch::channel(Faults::default())).unzip();
        let (end, ended) = watch::channel(false);
        let dropped = Arc::new(AtomicU64::new(0));
        let inbox = Inbox { notes: notes_in, faults: faults_in, dropped: dropped.clone(), end: ended };
        (Self { notes, faults, dropped, reported: 0, end, running: None }, inbox)
    }
}

impl Destination for ClusterSink {
    fn name(&self) -> &'static str {
        "events"
    }

    fn take_decision(&self, decision: &Decision, is_printed: bool) {
        let notes = self.notes.as_ref().filter(|_| is_printed);
        if notes.is_some_and(|notes| note::of(decision).is_some_and(|note| notes.try_send(note).is_err())) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(faults) = &self.faults {
            faults.send_if_modified(|faults| faults.take(decision, Instant::now()));
        }
    }

    /// Explanations that never reached the API, since the start.
    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// 0 while the queue is full: the next note would be dropped, too.
    fn take_dropped(&mut self) -> u64 {
        if self.notes.as_ref().is_some_and(|notes| notes.capacity() == 0 || notes.is_closed()) {
            return 0;
        }
        let now = self.dropped();
        now.saturating_sub(std::mem::replace(&mut self.reported, now))
    }

    /// Tells the task to send the queued items, for at most [`AT_END`], and to end.
    fn end(&mut self) {
        (self.notes, self.faults) = (None, None);
        let _ = self.end.send(true);
    }

    /// Ends the task and waits for it, for at most [`PATIENCE`]. A task that still runs then ends with the process.
    /// No record goes this way, so none is lost.
    fn finish(&mut self) -> bool {
        self.end();
        let Some(running) = self.running.take() else { return true };
        if running.recv_timeout(PATIENCE) == Err(std_mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the last writes to the cluster API did not finish in time and may be lost");
        }
        let given_up = self.take_dropped();
        if given_up > 0 {
            tracing::warn!("{given_up} Events on pods did not reach the cluster API before the end");
        }
        true
    }
}

impl Drop for ClusterSink {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Connects to the API and writes until the end.
async fn run(config: &ClusterOutput, inbox: Inbox, first: &std_mpsc::SyncSender<Result<(), ConnectError>>) {
    let (pace, begun) = (Pace::default(), || drop(first.try_send(Ok(()))));
    let mut end = inbox.end.clone();
    let client = tokio::select! {
        client = client(&config.access, &pace, |_| begun()) => client,
        _ = end.wait_for(|ended| *ended) => {
            let queued = inbox.notes.as_ref().map_or(0, mpsc::Receiver::len);
            inbox.dropped.fetch_add(queued as u64, Ordering::Relaxed);
            return;
        }
    };
    match client {
        Ok(client) => {
            begun();
            write(client, &config.node_name, inbox, pace, Rates::default()).await;
        }
        Err(error) => {
            // `start` stopped waiting for the result, so the error is logged here.
            if let Err(std_mpsc::TrySendError::Disconnected(Err(error))) = first.try_send(Err(error)) {
                tracing::warn!("nothing is written to the cluster API: {error}");
            }
        }
    }
}

/// Writes Events and the condition until the end.
async fn write(client: Client, node: &str, inbox: Inbox, pace: Pace, rates: Rates) {
    let Inbox { notes, faults, dropped, end } = inbox;
    let events = async {
        if let Some(notes) = notes {
            Explainer::new(client.clone(), node, pace, rates, dropped).run(notes, end.clone()).await;
        }
    };
    let condition = async {
        if let Some(faults) = faults {
            Keeper::new(client.clone(), node, pace, rates).run(faults, end.clone()).await;
        }
    };
    tokio::join!(events, condition);
}

/// Waits for the end of the run, then for [`AT_END`]: the time that requests in flight still get.
async fn wait_out_the_end(end: &mut watch::Receiver<bool>) {
    let _ = end.wait_for(|ended| *ended).await;
    sleep(AT_END).await;
}
