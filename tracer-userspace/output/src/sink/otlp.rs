//! OpenTelemetry: records as OTLP logs, printed (`-o otlp`) or pushed over HTTP (`--otlp-endpoint`).
//!
//! A [`Background`] pushes; the pipeline hands over and never waits. What waits is bounded by its bytes. A record is
//! delivered at least once, or counted as lost. If the answer of a receiver is lost, it gets the same request again:
//! (`service.instance.id`, `tracer.seq`) identifies the two copies.

mod convert;
mod message;
mod push;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use prost::Message as _;
use tokio::sync::{Semaphore, mpsc, watch};

use self::push::{Pusher, Waiting};
use tracer_model::plural::were;
use tracer_model::record::Record;
use tracer_sources::Background;
use tracer_terminal::error::{self, Error};

/// Bytes that may wait for the endpoint.
const BACKLOG: u32 = 8 << 20;
/// How long the end of a run waits for the endpoint.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpConfig {
    /// The URL of the endpoint, its path included.
    pub endpoint: Uri,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub gzip: bool,
}

/// One line: the record as a request of its own, in OTLP's JSON.
pub fn line(record: &Record) -> Vec<u8> {
    let request = convert::request(&record.node_name, None, vec![convert::log_record(record)]);
    // Maps have string keys and numbers are finite: nothing in these types can fail.
    let mut bytes = serde_json::to_vec(&request).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Pushes until it is finished.
#[derive(Debug)]
pub struct OtlpSink {
    records: Option<mpsc::UnboundedSender<Waiting>>,
    /// One permit for each byte that may wait. It travels with the record.
    room: Arc<Semaphore>,
    counts: Arc<Counts>,
    /// Of the lost ones, how many were reported.
    reported: u64,
    end: watch::Sender<bool>,
    /// Disconnected when the task ends.
    running: std_mpsc::Receiver<()>,
    endpoint: Uri,
}

/// Records that were taken, by what became of them.
#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicU64,
    lost: AtomicU64,
    /// The endpoint takes none, which was reported.
    is_out: AtomicBool,
}

impl Counts {
    /// So many have their end; of these, so many were lost.
    fn settle(&self, records: u64, lost: u64) {
        self.waiting.fetch_sub(records, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }
}

impl OtlpSink {
    pub fn start(config: OtlpConfig, background: &Background) -> Result<Self, Error> {
        let endpoint = config.endpoint.clone();
        let failed = |error: &dyn std::fmt::Display| Error::Source(format!("--otlp-endpoint {endpoint}: {error}"));
        let counts = Arc::new(Counts::default());
        let pusher = Pusher::new(config, counts.clone()).map_err(|error| failed(&error))?;
        let (records, inbox) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let running = background.run(move || pusher.run(inbox, ended, PATIENCE)).map_err(|error| failed(&error))?;
        let room = Arc::new(Semaphore::new(BACKLOG as usize));
        Ok(Self { records: Some(records), room, counts, reported: 0, end, running, endpoint })
    }

    /// Hands a record over; a full buffer loses it, and counts it.
    pub fn take(&self, record: &Record) {
        let Some(records) = &self.records else { return };
        let log_record = convert::log_record(record);
        let bytes = u32::try_from(log_record.encoded_len()).unwrap_or(u32::MAX);
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        let room = self.room.clone().try_acquire_many_owned(bytes).ok();
        let waiting = room.map(|room| Waiting { log_record, node_name: record.node_name.clone(), room });
        if waiting.is_none_or(|waiting| records.send(waiting).is_err()) {
            self.counts.settle(1, 1);
        }
    }

    /// Records that were lost on the way, since the start.
    pub fn dropped(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// Those since this was last asked, once the endpoint would take a record that says so.
    pub fn take_dropped(&mut self) -> u64 {
        let is_full = self.room.available_permits() < BACKLOG as usize / 2;
        if is_full || self.counts.is_out.load(Ordering::Relaxed) { 0 } else { self.take_lost() }
    }

    fn take_lost(&mut self) -> u64 {
        let now = self.dropped();
        now.saturating_sub(std::mem::replace(&mut self.reported, now))
    }

    /// Sends what waits, for a moment. Returns whether the endpoint confirmed every record since losses were last reported.
    pub fn finish(&mut self) -> bool {
        self.records = None;
        let _ = self.end.send(true);
        // A task that hangs ends with the process.
        let _ = self.running.recv_timeout(PATIENCE + Duration::from_secs(1));
        let left = self.counts.waiting.load(Ordering::Relaxed);
        self.counts.settle(left, left);
        let lost = self.take_lost();
        if lost > 0 {
            error::report(&format!("--otlp-endpoint {}: {} not confirmed", self.endpoint, were(lost, "record")));
        }
        lost == 0
    }
}
