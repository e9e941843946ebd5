//! The task that pushes: batches, compression, retries.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::convert::request;
use super::message::{LogRecord, Response};
use super::{Counts, OtlpConfig};
use tracer_sources::cluster::part;
use tracer_terminal::error;

/// Records of one request at most.
const BATCH: usize = 512;
/// How long the first record of a request waits for others.
const LINGER: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(30);
/// The first wait after a failure, and the longest.
const WAITS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// The wait between two retries once the run has ended.
const AT_END: Duration = Duration::from_millis(200);
/// Bytes of an answer that are read at most.
const ANSWER: usize = 64 << 10;

/// A record in the queue.
pub(super) struct Waiting {
    pub(super) log_record: LogRecord,
    pub(super) node_name: String,
    /// The permits of the record's bytes. Dropping them makes room in the queue.
    pub(super) room: OwnedSemaphorePermit,
}

pub(super) struct Pusher {
    config: OtlpConfig,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Identifies the records of this run.
    instance: Option<String>,
    counts: Arc<Counts>,
}

enum Failure {
    /// A retry may succeed; the receiver may say after which time.
    Passing(String, Option<Duration>),
    /// A retry cannot succeed.
    Final(String),
}

impl Pusher {
    pub(super) fn new(config: OtlpConfig, counts: Arc<Counts>) -> std::io::Result<Self> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(TIMEOUT / 3));
        let tls = HttpsConnectorBuilder::new();
        let provider = rustls::crypto::ring::default_provider();
        // Without TLS no root certificate is needed, and some images have none.
        let tls = if config.endpoint.scheme_str() == Some("https") {
            tls.with_provider_and_native_roots(provider)?
        } else {
            let bare = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
            let bare = bare.with_safe_default_protocol_versions().map_err(std::io::Error::other)?;
            tls.with_tls_config(bare.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
        };
        let connector = tls.https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").ok();
        let instance = uuid.map(|text| text.trim().to_owned());
        Ok(Self { config, client, instance, counts })
    }

    /// Delivers records until the queue is closed and empty, or until `patience` after the end of the run.
    pub(super) async fn run(
        self,
        mut inbox: mpsc::UnboundedReceiver<Waiting>,
        end: watch::Receiver<bool>,
        patience: Duration,
    ) {
        let mut over = end.clone();
        let deliver = async {
            loop {
                let batch = next_batch(&mut inbox).await;
                if batch.is_empty() {
                    break;
                }
                self.deliver(batch, &end).await;
            }
        };
        let give_up = async {
            let _ = over.wait_for(|ended| *ended).await;
            sleep(patience).await;
        };
        tokio::select! { () = deliver => {}, () = give_up => {} }
    }

    /// Retries until the receiver takes the records or refuses them for good.
    async fn deliver(&self, batch: Vec<Waiting>, end: &watch::Receiver<bool>) {
        let records = batch.len() as u64;
        let node_name = batch.first().map(|first| first.node_name.clone()).unwrap_or_default();
        let (log_records, room): (Vec<_>, Vec<_>) = batch.into_iter().map(|one| (one.log_record, one.room)).unzip();
        let body = self.body(&request(&node_name, self.instance.as_deref(), log_records).encode_to_vec());
        for failures in 0.. {
            match timeout(TIMEOUT, self.post(body.clone())).await.unwrap_or_else(|_| Err(too_slow())) {
                Ok(rejected) => {
                    self.end_outage();
                    self.counts.settle(records, rejected.min(records));
                    break;
                }
                Err(Failure::Final(why)) => {
                    self.report(&format!("{why}: records are dropped and counted"));
                    self.counts.settle(records, records);
                    break;
                }
                Err(Failure::Passing(why, after)) => {
                    self.report(&format!("{why}: records wait (8 MiB, more are dropped and counted)"));
                    pause(failures, after, end.clone()).await;
                }
            }
        }
        drop(room);
    }

    /// Sends one request. Gives how many of its records the receiver rejected.
    async fn post(&self, body: Bytes) -> Result<u64, Failure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.config.endpoint.clone();
        self.set_headers(request.headers_mut());
        let passing = |error: &dyn std::error::Error| Failure::Passing(error::chain(error), None);
        let response = self.client.request(request).await.map_err(|error| passing(&error))?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            return Err(refused(head.status, &head.headers));
        }
        let body = Limited::new(body, ANSWER).collect().await;
        let body = body.map_err(|error| Failure::Passing(format!("its answer: {error}"), None))?;
        // The status says that the records were taken, so an unreadable body is no reason to send them again.
        let partial = Response::decode(body.to_bytes()).unwrap_or_default().partial_success.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_log_records).unwrap_or(0);
        if rejected > 0 {
            tracing::warn!("{} rejected {rejected} records: {}", self.config.shown(), partial.error_message);
        }
        Ok(rejected)
    }

    fn body(&self, message: &[u8]) -> Bytes {
        if !self.config.gzip {
            return Bytes::copy_from_slice(message);
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // A vector takes everything.
        let _ = encoder.write_all(message);
        encoder.finish().unwrap_or_default().into()
    }

    fn set_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, http::HeaderValue::from_static(concat!("tracer/", env!("CARGO_PKG_VERSION"))));
        if self.config.gzip {
            headers.insert(CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
        }
        headers.extend(self.config.headers.iter().cloned());
    }

    /// Reports once, until the endpoint takes records again.
    fn report(&self, trouble: &str) {
        if !self.counts.is_out.swap(true, Ordering::Relaxed) {
            error::report(&format!("--otlp-endpoint {}: {trouble}", self.config.shown()));
        }
    }

    fn end_outage(&self) {
        if self.counts.is_out.swap(false, Ordering::Relaxed) {
            tracing::info!("--otlp-endpoint {}: the endpoint takes records again", self.config.shown());
        }
    }
}

/// The next records: the first one, and those that come within [`LINGER`]. Empty: the queue is closed.
async fn next_batch(inbox: &mut mpsc::UnboundedReceiver<Waiting>) -> Vec<Waiting> {
    let mut batch = Vec::new();
    if inbox.recv_many(&mut batch, BATCH).await > 0 {
        let fill = async {
            loop {
                let room = BATCH.saturating_sub(batch.len());
                if room == 0 || inbox.recv_many(&mut batch, room).await == 0 {
                    break;
                }
            }
        };
        let _ = timeout(LINGER, fill).await;
    }
    batch
}

/// Waits before the next retry: twice as long after each failure, plus a random part, so that nodes do not retry together.
async fn pause(failures: u32, after: Option<Duration>, mut end: watch::Receiver<bool>) {
    if *end.borrow() {
        sleep(AT_END).await;
        return;
    }
    let [first, longest] = WAITS;
    let wait = after.unwrap_or(first * 2_u32.pow(failures.min(8))).min(longest);
    let _ = timeout(wait + part(wait / 2), end.wait_for(|ended| *ended)).await;
}

fn too_slow() -> Failure {
    Failure::Passing(format!("no answer within {} s", TIMEOUT.as_secs()), None)
}

/// OTLP/HTTP allows a retry for these statuses only.
fn refused(status: StatusCode, headers: &HeaderMap) -> Failure {
    let why = format!("it answers {status}");
    let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
    match status.as_u16() {
        429 | 502 | 503 | 504 => Failure::Passing(why, after),
        _ => Failure::Final(why),
    }
}
