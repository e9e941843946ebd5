//! Events on pods: `ProbeFailureExplained`, with the verdict and its fix.
//!
//! They are core/v1 Events with a count: every kubectl shows the count and its time span. Old versions of kubectl show
//! neither for an Event of events.k8s.io/v1, which has a series instead.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::note::{FailedPod, Note};
use super::outage::Outage;
use super::post::{Answer, Change, write};
use super::rates::{Bucket, Rates};
use super::tally::{Entry, EventTally, Key};
use super::{AT_END, wait_out_the_end};
use tracer_sources::cluster::Pace;

/// Longest name of an object.
const NAME_MAX: usize = 253;

pub(super) struct Explainer {
    client: Client,
    node: String,
    pace: Pace,
    tally: EventTally,
    bucket: Bucket,
    outage: Outage,
    /// Whether a warning was logged about an Event that the API rejects for good.
    warned: bool,
}

impl Explainer {
    pub(super) fn new(client: Client, node: &str, pace: Pace, rates: Rates, dropped: Arc<AtomicU64>) -> Self {
        Self {
            client,
            node: node.to_owned(),
            pace,
            tally: EventTally::new(rates, dropped),
            bucket: Bucket::new(rates, Instant::now()),
            outage: Outage::new("Events on pods", pace, rates.refused),
            warned: false,
        }
    }

    /// Writes Events until the pipeline ends, then those that are left, for at most [`AT_END`].
    pub(super) async fn run(mut self, mut notes: mpsc::Receiver<Note>, mut end: watch::Receiver<bool>) {
        loop {
            let due = self.due();
            let reported = tokio::select! {
                note = notes.recv() => Some(note),
                () = sleep_until_due(due) => None,
            };
            match reported {
                Some(Some(note)) => self.take(note),
                Some(None) => break,
                None => tokio::select! {
                    () = self.send_next() => {}
                    // The API did not answer in time.
                    () = wait_out_the_end(&mut end) => return self.end(notes),
                },
            }
        }
        let _ = timeout(AT_END, self.flush()).await;
        self.end(notes);
    }

    /// Counts the notes that were not written as dropped.
    fn end(mut self, mut notes: mpsc::Receiver<Note>) {
        while let Ok(note) = notes.try_recv() {
            self.take(note);
        }
        self.tally.end();
    }

    fn take(&mut self, note: Note) {
        self.tally.take(note, Instant::now(), Timestamp::now());
    }

    fn due(&self) -> Option<Instant> {
        let (due, _) = self.tally.next()?;
        let allowed = self.bucket.ready().max(self.outage.until.unwrap_or(due));
        Some(due.max(allowed))
    }

    async fn send_next(&mut self) {
        self.tally.expire(Instant::now());
        let next = self.tally.next().map(|(due, key)| (due, key.clone()));
        if let Some((_, key)) = next.filter(|(due, _)| *due <= Instant::now()) {
            self.send(&key).await;
        }
    }

    async fn send(&mut self, key: &Key) {
        let Some(entry) = self.tally.get(key) else { return };
        let name = entry.event.clone().unwrap_or_else(|| event_name(&key.0.pod, entry.first));
        let events = format!("/api/v1/namespaces/{}/events", key.0.namespace);
        let (change, path, body) = match &entry.event {
            Some(event) => (Change::Merge, format!("{events}/{event}"), counted(entry)),
            None => (Change::Create, events, self.event(&key.0, &name, entry)),
        };
        let is_new = entry.event.is_none();
        self.bucket.take(Instant::now());
        match write(&self.client, &self.pace, change, &path, "events", &body).await {
            Answer::Done => {
                self.tally.written(key, name, Instant::now());
                self.outage.end();
            }
            Answer::Missing if !is_new => self.tally.gone(key),
            // An earlier request created the Event, but its answer was lost.
            Answer::Exists if is_new => self.tally.made(key, name),
            // The pod's namespace does not exist any more.
            Answer::Missing | Answer::Exists => self.tally.give_up(key),
            Answer::Never(failure) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!("no Event on pod {}/{}: cluster API {failure}", key.0.namespace, key.0.pod);
                }
                self.tally.give_up(key);
            }
            Answer::Later(failure) => self.outage.failed(&failure, Instant::now()),
        }
    }

    /// Writes what is left, as long as the bucket has tokens and the API answers.
    async fn flush(&mut self) {
        while let Some(key) = self.tally.next().map(|(_, key)| key.clone()) {
            let now = Instant::now();
            if self.bucket.ready() > now || self.outage.until.is_some_and(|until| until > now) {
                return;
            }
            self.send(&key).await;
        }
    }

    fn event(&self, about: &FailedPod, name: &str, entry: &Entry) -> Value {
        let FailedPod { namespace, pod, uid, container } = about;
        let field = container.as_ref().map(|name| format!("spec.containers{{{name}}}"));
        let mut event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "namespace": namespace, "name": name },
            "involvedObject": { "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod, "uid": uid, "fieldPath": field },
            "reason": "ProbeFailureExplained", "type": "Warning",
            "source": { "component": "tracer", "host": self.node },
            "reportingComponent": "tracer", "reportingInstance": self.node,
            "firstTimestamp": second(entry.first),
        });
        if let (Some(event), Value::Object(counted)) = (event.as_object_mut(), counted(entry)) {
            event.extend(counted);
        }
        event
    }
}

/// Sleeps until an instant; forever without one.
async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The fields of an Event that change with every failure.
fn counted(entry: &Entry) -> Value {
    json!({ "count": entry.count, "lastTimestamp": second(entry.last), "message": entry.message })
}

/// RFC 3339 in whole seconds, as the API has the times of Events.
pub(super) fn second(time: Timestamp) -> String {
    format!("{time:.0}")
}

/// The name that client-go would give an Event: the pod's name and a time in hexadecimal.
fn event_name(pod: &str, time: Timestamp) -> String {
    let time = format!(".{:x}", time.as_nanosecond());
    let pod = &pod[..pod.floor_char_boundary(NAME_MAX - time.len())];
    format!("{}{time}", pod.trim_end_matches(['.', '-']))
}
