//! OpenTelemetry: records as OTLP logs, printed (`-o otlp`) or pushed over HTTP (`--otlp-endpoint`).
//!
//! A [`Background`] pushes, so the pipeline never waits. The queue is limited by its bytes. A record is delivered at least
//! once, or counted as lost. If the answer of a receiver is lost, the same request is sent again. The two copies of a
//! record have the same `service.instance.id` and `tracer.seq`.

mod convert;
mod flags;
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

pub(super) use self::flags::OtlpFlags;
use self::push::{Pusher, Waiting};
use crate::sink::{Destination, ndjson};
use tracer_model::plural::were;
use tracer_model::record::Record;
use tracer_sources::Background;
use tracer_terminal::error::{self, Error};

/// Bytes of the queue.
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

impl OtlpConfig {
    /// The URL for messages. Its query may have a token.
    fn shown(&self) -> String {
        self.endpoint.to_string().split('?').next().unwrap_or_default().to_owned()
    }
}

/// The record as one line: a request of its own, in OTLP's JSON.
pub(super) fn line(record: &Record) -> Vec<u8> {
    ndjson::line_of(&convert::request(&record.node_name, None, vec![convert::log_record(record)]))
}

/// The sending side: the pipeline queues records here.
#[derive(Debug)]
pub(super) struct OtlpSink {
    records: Option<mpsc::UnboundedSender<Waiting>>,
    /// One permit for each byte of the queue. A queued record holds its permits.
    room: Arc<Semaphore>,
    counts: Arc<Counts>,
    /// How many of the lost records were reported.
    reported: u64,
    end: watch::Sender<bool>,
    /// Disconnected when the task ends.
    running: std_mpsc::Receiver<()>,
    /// For messages.
    endpoint: String,
}

/// Counters of the records that were taken.
#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicU64,
    lost: AtomicU64,
    /// The endpoint takes no records, and that was reported.
    is_out: AtomicBool,
}

impl Counts {
    /// This many records are delivered or lost; `lost` of them are lost.
    fn settle(&self, records: u64, lost: u64) {
        self.waiting.fetch_sub(records, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }
}

impl OtlpSink {
    pub(super) fn start(config: OtlpConfig, background: &Background) -> Result<Self, Error> {
        let endpoint = config.shown();
        let failed = |error: &dyn std::fmt::Display| Error::Source(format!("--otlp-endpoint {endpoint}: {error}"));
        let counts = Arc::new(Counts::default());
        let pusher = Pusher::new(config, counts.clone()).map_err(|error| failed(&error))?;
        let (records, inbox) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let running = background.run(move || pusher.run(inbox, ended, PATIENCE)).map_err(|error| failed(&error))?;
        let room = Arc::new(Semaphore::new(BACKLOG as usize));
        Ok(Self { records: Some(records), room, counts, reported: 0, end, running, endpoint })
    }

    fn take_lost(&mut self) -> u64 {
        let now = self.dropped();
        now.saturating_sub(std::mem::replace(&mut self.reported, now))
    }
}

impl Destination for OtlpSink {
    fn name(&self) -> &'static str {
        "otlp"
    }

    /// Queues a record. A full queue drops and counts it.
    fn take_record(&self, record: &Record) {
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

    /// Records lost since the start.
    fn dropped(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// 0 while the endpoint cannot take the `loss` record about them.
    fn take_dropped(&mut self) -> u64 {
        let is_full = self.room.available_permits() < BACKLOG as usize / 2;
        if is_full || self.counts.is_out.load(Ordering::Relaxed) { 0 } else { self.take_lost() }
    }

    /// Sends the queue, for at most [`PATIENCE`]. Gives whether the endpoint confirmed every record since the last report
    /// of losses.
    fn finish(&mut self) -> bool {
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
