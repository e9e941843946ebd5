//! The daemon's HTTP server: `/metrics`, `/healthz` and `/readyz`, on a unix socket and, if asked for, on a TCP
//! address. It runs on a [`Background`]: slow clients do not slow down the pipeline, and it can report a pipeline that
//! hangs.

pub mod ask;
mod flags;
mod health;
mod http;
mod listen;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::SystemTime;

use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

pub use self::flags::Serve;
pub use self::health::{Health, Report};
use self::http::Pages;
use self::listen::Place;
use crate::sink::metrics::Metrics;
use tracer_sources::Background;
use tracer_terminal::error::{self, os_message};

/// The default of `--health-socket`.
pub const HEALTH_SOCKET: &str = "/run/tracer/health.sock";

/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// What the pipeline reports about itself.
    pub health: Arc<Health>,
    end: Option<oneshot::Sender<()>>,
    /// Disconnected when the server has ended.
    running: Option<Receiver<()>>,
}

/// Starts the server, and gives the metrics to fill. If it cannot listen on an address, it retries.
#[must_use]
pub fn start(serve: &Serve, background: &Background) -> (Server, Option<Metrics>) {
    let (metrics, registry) =
        serve.metrics_listen.map(|_| Metrics::new(serve.metrics_pod_labels, SystemTime::now())).unzip();
    let health = Arc::<Health>::default();
    let (end, ended) = oneshot::channel();
    let (config, state) = (serve.clone(), Arc::clone(&health));
    let running = background.run(move || answer(config, state, registry, ended));
    let running =
        running.map_err(|error| error::warn(&format!("no metrics and no health: no thread: {}", os_message(&error))));
    (Server { health, end: Some(end), running: running.ok() }, metrics)
}

async fn answer(serve: Serve, health: Arc<Health>, registry: Option<Arc<Registry>>, ended: oneshot::Receiver<()>) {
    let pages = Pages::new(Arc::clone(&health), registry);
    let mut places = JoinSet::new();
    for place in
        [Some(Place::Unix(serve.health_socket.clone())), serve.metrics_listen.map(Place::Tcp)].into_iter().flatten()
    {
        places.spawn_local(listen::serve(place, pages.clone()));
    }
    // Each task serves forever, so a task that ends has panicked.
    tokio::select! {
        _ = ended => {}
        Some(Err(error)) = places.join_next() => std::panic::resume_unwind(error.into_panic()),
    }
    places.shutdown().await;
    if health.has_socket() {
        let _ = std::fs::remove_file(&serve.health_socket);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.running.take().map(|running| running.recv());
    }
}
