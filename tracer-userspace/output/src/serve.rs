//! What a daemon answers: `/metrics`, `/healthz` and `/readyz` over HTTP, on a TCP address if one was given
//! and on a unix socket. It runs on a thread with an event loop of its own: a slow client, or a thousand,
//! cost the pipeline nothing, and a pipeline that stands still can be known of.

pub mod ask;
mod health;
mod http;
mod listen;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use prometheus_client::registry::Registry;
use tokio::sync::oneshot;

pub use self::health::{Health, Report};
use self::http::Pages;
use self::listen::Place;
use crate::sink::metrics::Metrics;
use tracer_terminal::error::{self, os_message};

/// The health socket of a daemon where no other is asked for.
pub const HEALTH_SOCKET: &str = "/run/tracer/health.sock";
/// hyper's futures live on the heap: the thread needs little.
const STACK: usize = 512 << 10;

/// Where a daemon answers.
#[derive(Clone, Debug)]
pub struct Serve {
    /// `--metrics-listen`.
    pub metrics: Option<SocketAddr>,
    /// `--health-socket`.
    pub health: PathBuf,
    /// `--metrics-pod-labels`.
    pub pod_labels: bool,
}

/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// What the pipeline says of itself.
    pub health: Arc<Health>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to answer, and gives the metrics to be filled. What cannot be listened on is tried again.
#[must_use]
pub fn start(serve: &Serve) -> (Server, Option<Metrics>) {
    let (metrics, registry) = serve.metrics.map(|_| Metrics::new(serve.pod_labels)).unzip();
    let health = Arc::new(Health::new());
    let (end, ended) = oneshot::channel();
    let (config, state) = (serve.clone(), Arc::clone(&health));
    let run = move || run(&config, &state, registry, ended);
    let thread = std::thread::Builder::new().name("serve".into()).stack_size(STACK).spawn(run);
    let thread =
        thread.map_err(|error| error::warn(&format!("no metrics and no health: no thread: {}", os_message(&error))));
    (Server { health, end: Some(end), thread: thread.ok() }, metrics)
}

/// The thread's event loop.
fn run(serve: &Serve, health: &Arc<Health>, registry: Option<Arc<Registry>>, ended: oneshot::Receiver<()>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return error::warn(&format!("no metrics and no health: no event loop: {}", os_message(&error))),
    };
    let pages = Pages::new(Arc::clone(health), registry);
    let metrics = serve.metrics.map(Place::Tcp);
    let places = [Some(Place::Unix(serve.health.clone())), metrics];
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for place in places.into_iter().flatten() {
            tokio::task::spawn_local(listen::serve(place, pages.clone()));
        }
        let _ = ended.await;
    });
    if health.has_socket() {
        let _ = std::fs::remove_file(&serve.health);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
