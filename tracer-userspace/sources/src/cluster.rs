//! The cluster API: pods of this node with their probes; Services and the kubelet's Events where they are asked for.
//!
//! A [`Background`] follows the API, since a long list takes time to read and nothing may hold up the event stream.
//! What it knows lies on a [`View`] that is replaced, never queued. Without the API everything else goes on.

mod board;
mod connect;
mod events;
mod failure;
mod follow;
pub(super) mod fuzzing;
mod known;
mod lines;
mod objects;
mod pace;
mod reason;
mod request;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;

pub use connect::client;
pub use connect::{Access, ConnectError, in_cluster};
pub(super) use events::Heard;
pub use events::Namespace;
pub use failure::{ApiRequest, Failure};
pub use objects::percent_encoded;
pub use pace::{Pace, part};
pub use reason::reason;
pub use request::send;

use super::background::Background;
use super::files::{Slice, api, join};
use super::kubelet::KubeletEvent;
use board::Board;
use follow::ResourceFollower;
use request::Scope;
use tracer_model::event::{Pod, Service};

/// The start waits this long for the API; what comes later comes as facts.
const FIRST: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct ClusterConfig {
    pub access: Access,
    /// Pods of this node only.
    pub node_name: String,
    /// Pods are wanted: no file gives them.
    pub pods: bool,
    /// Services and their endpoints are wanted, of the whole cluster.
    pub services: bool,
    /// Events of the kubelet are wanted, of these namespaces.
    pub events: Vec<Namespace>,
}

impl ClusterConfig {
    pub const fn asks_something(&self) -> bool {
        self.pods || self.services || !self.events.is_empty()
    }
}

/// What is known of the cluster.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Pods of this node.
    pub pods: Vec<Pod>,
    /// Services without their endpoints.
    services: Vec<Service>,
    slices: Vec<Slice>,
    /// Events of this node's kubelet, by who follows them.
    events: BTreeMap<String, Vec<KubeletEvent>>,
    states: BTreeMap<String, State>,
}

/// How it stands with one kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Following,
    /// In words that follow "cluster API".
    Failing(String),
}

impl View {
    /// Nothing known; these kinds are asked for.
    fn of(config: &ClusterConfig) -> Self {
        let pods = config.pods.then_some("pods");
        let services = config.services.then_some(["services", "endpointslices"]);
        let kinds = pods.into_iter().chain(services.into_iter().flatten()).map(str::to_owned);
        let kinds = kinds.chain(config.events.iter().map(Namespace::events));
        Self { states: kinds.map(|kind| (kind, State::Waiting)).collect(), ..Self::default() }
    }

    /// Services joined with their endpoints.
    pub fn services(&self) -> Vec<Service> {
        let known = self.states.get("endpointslices").is_some_and(|state| *state != State::Waiting);
        join(self.services.clone(), known.then(|| self.slices.clone()))
    }

    /// What is wrong; follows "cluster API".
    pub fn failure(&self) -> Option<&str> {
        self.states.values().find_map(|state| match state {
            State::Failing(text) => Some(text.as_str()),
            State::Waiting | State::Following => None,
        })
    }

    /// All that was asked for is known.
    pub fn is_complete(&self) -> bool {
        self.states.values().all(|state| *state == State::Following)
    }

    fn is_waiting(&self) -> bool {
        self.states.values().any(|state| *state == State::Waiting)
    }
}

/// The cluster, followed until the last of these is dropped.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub config: ClusterConfig,
    view: watch::Receiver<View>,
}

impl Cluster {
    /// Follows the API from now on; gives it a moment to answer. An API that does not answer is no error.
    pub fn start(config: ClusterConfig, background: &Background) -> Result<Self, ConnectError> {
        let (tx, view) = watch::channel(View::of(&config));
        let (first, begun) = mpsc::sync_channel(1);
        let followed = config.clone();
        background.run(move || async move { follow(&followed, tx, &first).await })?;
        // A timeout means that nothing is known yet.
        begun.recv_timeout(FIRST).unwrap_or(Ok(()))?;
        Ok(Self { config, view })
    }

    /// A cluster that is what a test says.
    #[cfg(test)]
    pub(super) fn fixed(node: &str) -> (watch::Sender<View>, Self) {
        let access = Access::InCluster;
        let config = ClusterConfig { access, node_name: node.into(), pods: true, services: false, events: Vec::new() };
        let (tx, view) = watch::channel(View::of(&config));
        (tx, Self { config, view })
    }

    /// What the start record says of it.
    pub fn sources(&self) -> Vec<String> {
        let view = self.view.borrow();
        let follows = |kind: &str| view.states.get(kind) == Some(&State::Following);
        let pods = follows("pods").then(|| "pods and probes (cluster API)".to_owned());
        let services = follows("services").then(|| format!("{} services (cluster API)", view.services.len()));
        let failing = view.failure().map(|failure| format!("cluster API: {failure}"));
        let waiting = view.is_waiting().then(|| format!("cluster API: no answer within {} s", FIRST.as_secs()));
        let events = self.config.events.iter().map(Namespace::events).filter(|name| follows(name));
        let events = events.map(|name| format!("probe outcomes (the kubelet's {name}, cluster API)"));
        [pods, services].into_iter().flatten().chain(events).chain([failing, waiting].into_iter().flatten()).collect()
    }

    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// What is known now; the next [`Cluster::changed`] waits for another.
    #[must_use]
    pub fn take(&mut self) -> View {
        self.view.borrow_and_update().clone()
    }

    /// Whether there is another view than the one taken.
    pub fn has_changed(&self) -> bool {
        self.view.has_changed().unwrap_or(false)
    }

    /// Waits for another view; forever where nobody follows any more.
    pub async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

type First = mpsc::SyncSender<Result<(), ConnectError>>;

/// Until nobody wants to know any more.
async fn follow(config: &ClusterConfig, view: watch::Sender<View>, first: &First) {
    let client = match connect::client(&config.access).await {
        Ok(client) => client,
        Err(error) => {
            // Nobody listens any more if it took too long.
            if let Err(mpsc::TrySendError::Disconnected(Err(error))) = first.try_send(Err(error)) {
                tracing::warn!("{error}");
            }
            return;
        }
    };
    follow_with(client, config, Pace::default(), view, first).await;
}

async fn follow_with(client: Client, config: &ClusterConfig, pace: Pace, view: watch::Sender<View>, first: &First) {
    let view = Rc::new(view);
    let scope = |namespace| Scope { node: config.node_name.clone(), namespace };
    let follow = Follow { client: &client, pace, view: &view };
    let events = config.events.iter().map(|of| follow.kind::<api::Event>(true, scope(of.name()), of.events()));
    tokio::select! {
        () = follow.kind::<api::Pod>(config.pods, scope(None), "pods".into()) => {}
        () = follow.kind::<api::Service>(config.services, scope(None), "services".into()) => {}
        () = follow.kind::<api::EndpointSlice>(config.services, scope(None), "endpointslices".into()) => {}
        () = all(events.map(Box::pin).collect()) => {}
        () = signal_first(view.subscribe(), first) => {}
        () = view.closed() => {}
    }
}

/// What every follower needs.
#[derive(Clone, Copy)]
struct Follow<'a> {
    client: &'a Client,
    pace: Pace,
    view: &'a Rc<watch::Sender<View>>,
}

impl Follow<'_> {
    async fn kind<W: objects::Watched>(self, wanted: bool, scope: Scope, name: String) {
        if wanted {
            ResourceFollower::<W>::new(self.client.clone(), scope, self.pace, Board::new(self.view.clone(), name))
                .run()
                .await;
        }
        std::future::pending().await
    }
}

/// All at once; none of them ends.
async fn all<F: Future<Output = ()> + Unpin>(mut running: Vec<F>) {
    std::future::poll_fn(|context| {
        for one in &mut running {
            let _ = Pin::new(one).poll(context);
        }
        Poll::Pending
    })
    .await
}

/// Once every kind is known or has failed, the start goes on.
async fn signal_first(mut view: watch::Receiver<View>, first: &First) {
    if view.wait_for(|view| !view.is_waiting()).await.is_ok() {
        let _ = first.try_send(Ok(()));
    }
    drop(view);
    std::future::pending().await
}
