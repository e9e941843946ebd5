//! The kubelet's own HTTP API: how many results of probes it counted (`/metrics/probes`), and its pods (`/pods`) where the
//! cluster API does not list them. Both by their own permissions (`nodes/metrics`, `nodes/pods`), never by `nodes/proxy`.
//!
//! A thread of its own asks, a few times a minute. Without the kubelet everything else goes on.

mod ask;
mod counters;
mod credentials;
pub(super) mod fuzzing;
mod own_files;
mod poll;
#[cfg(test)]
mod tests;
mod trouble;
mod trust;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

use self::poll::{Poller, Times};
use super::cluster::{Access, Cluster};
use tracer_model::event::{Fact, Pod};

/// Where the kubelet serves unless it was told otherwise.
const PORT: u16 = 10250;
/// The start waits this long for the first answers; what comes later comes as facts.
const FIRST: Duration = Duration::from_secs(2);

/// Where the kubelet serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), port: PORT }
    }
}

impl Endpoint {
    /// As a URL has it.
    fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// `auto`, or `https://HOST[:PORT]`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::default());
        }
        let form = || "not of the form https://HOST[:PORT] (or `auto`: https://127.0.0.1:10250)".to_owned();
        let rest = text.strip_prefix("https://").ok_or_else(form)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let authority: http::uri::Authority = rest.parse().map_err(|_| form())?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        // Neither a user nor a path, and a port that is one.
        let port = match rest.strip_prefix(authority.host()) {
            Some("") => Some(PORT),
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        port.filter(|_| !host.is_empty()).map(|port| Self { host, port }).ok_or_else(form)
    }
}

/// What is asked of the kubelet.
#[derive(Clone, Debug)]
pub struct KubeletApiConfig {
    /// Where it serves.
    pub endpoint: Endpoint,
    /// Its certificate, or that of who signed it, where neither its disk nor the cluster's authority tells.
    pub ca: Option<PathBuf>,
    /// Who asks; absent: nobody.
    pub access: Option<Access>,
    /// Name of this node, for which the cluster's authority may have signed.
    pub node_name: String,
    /// Names of the processes that are kubelets.
    pub probers: Vec<String>,
    /// Pods are wanted: no file gives them.
    pub pods: bool,
}

/// What is known of the kubelet.
#[derive(Clone, Debug, Default)]
struct View {
    /// Its pods, while they are asked for.
    pods: Option<Vec<Pod>>,
    /// How it stands with what was asked, by its path.
    states: BTreeMap<&'static str, State>,
}

/// How it stands with one path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The last answer was good.
    Answering,
    Failing {
        /// In words that follow the address.
        text: String,
        /// The kubelet does not answer at all.
        outage: bool,
    },
}

/// The kubelet, asked until the last of these is dropped.
#[derive(Clone, Debug)]
pub struct KubeletApi {
    endpoint: Endpoint,
    view: watch::Receiver<View>,
}

impl KubeletApi {
    /// Asks from now on; what is counted goes to `tx`. Pods are asked for while `cluster` does not list them.
    ///
    /// # Errors
    /// No thread. A kubelet that does not answer is no error.
    pub fn start(config: KubeletApiConfig, cluster: Option<Cluster>, tx: Sender<Fact>) -> io::Result<Self> {
        let (view_tx, view) = watch::channel(View::default());
        let endpoint = config.endpoint.clone();
        let (first, begun) = std_mpsc::sync_channel(1);
        let poller = Poller::new(config, cluster, Times::default(), view_tx, tx);
        thread::Builder::new().name("kubelet-api".into()).spawn(move || run(poller, first))?;
        // A timeout means that nothing is known yet.
        let _ = begun.recv_timeout(FIRST);
        Ok(Self { endpoint, view })
    }

    /// What the start record says of it.
    #[must_use]
    pub fn sources(&self) -> Vec<String> {
        let view = self.view.borrow();
        let at = format!("kubelet API https://{}", self.endpoint.authority());
        let told = |(&path, state): (&&str, &State)| match state {
            State::Answering if path == poll::PODS => format!("pods and probes ({at})"),
            State::Answering => format!("counts of failed probes ({at})"),
            State::Failing { text, .. } => format!("{at}{path} {text}"),
        };
        let waiting = view.states.is_empty().then(|| format!("{at}: no answer within {} s", FIRST.as_secs()));
        view.states.iter().map(told).chain(waiting).collect()
    }

    /// Its pods; absent while they are not asked for, or were never given.
    #[must_use]
    pub fn pods(&self) -> Option<Vec<Pod>> {
        self.view.borrow().pods.clone()
    }

    /// Whether there is news since this was last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        let changed = self.view.has_changed().unwrap_or(false);
        self.view.mark_unchanged();
        changed
    }

    /// Waits for news; forever where nobody asks any more.
    pub(super) async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// A kubelet that has these pods.
    #[cfg(test)]
    pub(super) fn fixed(pods: Option<Vec<Pod>>) -> Self {
        let (_, view) = watch::channel(View { pods, states: BTreeMap::new() });
        Self { endpoint: Endpoint::default(), view }
    }
}

/// The thread.
fn run(poller: Poller, first: std_mpsc::SyncSender<()>) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(poller.run(first)),
        Err(error) => tracing::error!("the kubelet's API is not asked: {error}"),
    }
}
