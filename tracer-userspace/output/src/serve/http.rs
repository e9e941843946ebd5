//! The pages, and the limits for clients.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::health::Health;
use crate::sink::{metrics, ndjson};

/// How long a client may take to send the head of its request.
const HEAD: Duration = Duration::from_secs(2);
/// How long a connection may last: one request, and reading its answer.
const CONNECTION: Duration = Duration::from_secs(10);
/// Bytes of a request's head at most.
const HEAD_MAX: usize = 8 << 10;
/// Header lines of a request at most.
const HEADERS_MAX: usize = 64;
/// For how long the text of the metrics is reused, so that slow clients share one copy.
const FRESH: Duration = Duration::from_millis(500);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const PLAIN: &str = "text/plain; charset=utf-8";

#[derive(Clone)]
pub(super) struct Pages {
    pub(super) health: Arc<Health>,
    registry: Option<Arc<Registry>>,
    /// The metrics as text, and since when.
    cached: Rc<RefCell<Option<(Instant, Bytes)>>>,
}

impl Pages {
    pub(super) fn new(health: Arc<Health>, registry: Option<Arc<Registry>>) -> Self {
        Self { health, registry, cached: Rc::default() }
    }

    /// Answers one request of one client, within bounds.
    pub(super) async fn answer(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| {
            let response = self.page(&request);
            async { Ok::<_, Infallible>(response) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false);
        server.max_buf_size(HEAD_MAX).max_headers(HEADERS_MAX);
        match timeout(CONNECTION, server.serve_connection(TokioIo::new(stream), service)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a client was not answered"),
            Err(_) => tracing::debug!("a client was too slow"),
        }
    }

    fn page(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET only\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(),
            "/healthz" => self.health(|report| report.live),
            "/readyz" => self.health(|report| report.ready),
            _ => response(StatusCode::NOT_FOUND, PLAIN, "/metrics /healthz /readyz\n"),
        }
    }

    fn health(&self, is_well: fn(&super::Report) -> bool) -> Response<Full<Bytes>> {
        let report = self.health.report();
        let status = if is_well(&report) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        response(status, JSON, ndjson::line_of(&report))
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        match &self.registry {
            Some(registry) => response(StatusCode::OK, TEXT, self.text(registry)),
            None => response(StatusCode::NOT_FOUND, PLAIN, "no metrics: --metrics-listen was not given\n"),
        }
    }

    fn text(&self, registry: &Registry) -> Bytes {
        let mut cached = self.cached.borrow_mut();
        match &*cached {
            Some((made, text)) if made.elapsed() < FRESH => text.clone(),
            _ => {
                let text = Bytes::from(metrics::text(registry));
                *cached = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
