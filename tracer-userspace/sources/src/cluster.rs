//! The cluster API: pods of this node with their probes and, where asked for, the kubelet's Events.
//!
//! A [`Background`] follows the API, because a long list takes time to read and must not delay the event stream. Its
//! results are a [`View`], which is replaced and never queued. Without the API everything else continues.

mod board;
mod connect;
mod endpoints;
mod events;
mod failure;
mod follow;
pub(super) mod fuzzing;
mod known;
mod objects;
mod pace;
mod reason;
pub mod request;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;

pub use connect::{Access, ConnectError, client, client_of, config_of, in_cluster};
pub use endpoints::Queries;
pub use events::Namespace;
pub(super) use events::SentEvents;
pub use failure::{ApiRequest, Failure};
pub use objects::percent_encoded;
pub use pace::{Pace, part};
pub use reason::{one_line, reason};

use super::background::Background;
use super::files::api;
use super::kubelet::KubeletEvent;
use board::Board;
use endpoints::{Answering, answering};
use follow::ResourceFollower;
use request::Scope;
use tracer_model::event::{ObservationKind, Pod};

/// The start of a run waits this long for the API. Later results come as observations.
const FIRST: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct ClusterConfig {
    pub access: Access,
    pub node_name: String,
    /// Whether to follow pods: no file lists them.
    pub pods: bool,
    /// Whether to ask for the endpoints of a Service where a verdict needs them.
    pub endpoints: bool,
    /// The namespaces of which the Events of the kubelet are followed.
    pub events: Vec<Namespace>,
}

impl ClusterConfig {
    pub const fn asks_something(&self) -> bool {
        self.pods || self.endpoints || !self.events.is_empty()
    }
}

/// What is known of the cluster.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub pods: Vec<Pod>,
    /// Events of this node's kubelet, by their follower.
    events: BTreeMap<String, Vec<KubeletEvent>>,
    states: BTreeMap<String, State>,
}

/// The state of one kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Following,
    /// The problem, in words that follow "cluster API".
    Failing(String),
}

impl View {
    /// A view of these kinds, of which nothing is known yet.
    fn of(config: &ClusterConfig) -> Self {
        let pods = config.pods.then(|| "pods".to_owned());
        let kinds = pods.into_iter().chain(config.events.iter().map(Namespace::events));
        Self { states: kinds.map(|kind| (kind, State::Waiting)).collect(), ..Self::default() }
    }

    /// The problems, in words that follow "cluster API".
    pub fn failure(&self) -> Option<&str> {
        self.states.values().find_map(|state| match state {
            State::Failing(text) => Some(text.as_str()),
            State::Waiting | State::Following => None,
        })
    }

    /// Whether every kind is known.
    pub fn is_complete(&self) -> bool {
        self.states.values().all(|state| *state == State::Following)
    }

    fn is_waiting(&self) -> bool {
        self.states.values().any(|state| *state == State::Waiting)
    }
}

/// The cluster API, which is followed until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub config: ClusterConfig,
    /// Takes queries for the endpoints of Services.
    pub queries: Queries,
    view: watch::Receiver<View>,
}

impl Cluster {
    /// Follows the API from now on, and gives it a moment to answer. No answer is no error. Queries are answered to
    /// `answers`.
    pub fn start(
        config: ClusterConfig,
        answers: Sender<ObservationKind>,
        background: &Background,
    ) -> Result<Self, ConnectError> {
        let (queries, answering) = answering(answers);
        let (tx, view) = watch::channel(View::of(&config));
        let (first, begun) = mpsc::sync_channel(1);
        let followed = config.clone();
        background.run(move || async move { follow(&followed, answering, tx, &first).await })?;
        // After a timeout, nothing is known yet.
        begun.recv_timeout(FIRST).unwrap_or(Ok(()))?;
        Ok(Self { config, queries, view })
    }

    /// The text for the start record.
    pub fn sources(&self) -> Vec<String> {
        let view = self.view.borrow();
        let follows = |kind: &str| view.states.get(kind) == Some(&State::Following);
        let pods = follows("pods").then(|| "pods and probes (cluster API)".to_owned());
        let failing = view.failure().map(|failure| format!("cluster API: {failure}"));
        let waiting = view.is_waiting().then(|| format!("cluster API: no answer within {} s", FIRST.as_secs()));
        let events = self.config.events.iter().map(Namespace::events).filter(|name| follows(name));
        let events = events.map(|name| format!("probe outcomes (the kubelet's {name}, cluster API)"));
        pods.into_iter().chain(events).chain(failing).chain(waiting).collect()
    }

    pub fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// The present view. The next [`Cluster::changed`] waits for another one.
    #[must_use]
    pub fn take(&mut self) -> View {
        self.view.borrow_and_update().clone()
    }

    /// Whether the view changed since it was taken.
    pub fn has_changed(&self) -> bool {
        self.view.has_changed().unwrap_or(false)
    }

    /// Waits for another view; forever if nobody follows the API any more.
    pub async fn changed(&mut self) {
        if self.view.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

type First = mpsc::SyncSender<Result<(), ConnectError>>;

/// Follows the API until the receiver is gone.
async fn follow(config: &ClusterConfig, answering: Answering, view: watch::Sender<View>, first: &First) {
    let pace = Pace::default();
    let failed = |failure: &Failure| {
        let failing = State::Failing(failure.to_string());
        view.send_modify(|view| view.states.values_mut().for_each(|state| state.clone_from(&failing)));
        let _ = first.try_send(Ok(()));
    };
    let client = tokio::select! {
        client = client(&config.access, &pace, failed) => client,
        () = view.closed() => return,
    };
    match client {
        Ok(client) => follow_with(client, config, answering, pace, view, first).await,
        Err(error) => {
            // The receiver is gone if this took too long.
            if let Err(mpsc::TrySendError::Disconnected(Err(error))) = first.try_send(Err(error)) {
                tracing::warn!("{error}");
            }
        }
    }
}

async fn follow_with(
    client: Client,
    config: &ClusterConfig,
    answering: Answering,
    pace: Pace,
    view: watch::Sender<View>,
    first: &First,
) {
    let view = Rc::new(view);
    let scope = |namespace| Scope { node: config.node_name.clone(), namespace };
    let board = |name| Board::new(view.clone(), name);
    let pods = ResourceFollower::<api::Pod>::new(client.clone(), scope(None), pace, board("pods".into()));
    let events = config.events.iter().map(|of| {
        ResourceFollower::<api::Event>::new(client.clone(), scope(of.name()), pace, board(of.events())).run()
    });
    tokio::select! {
        () = pods.run(), if config.pods => {}
        () = all(events.map(Box::pin).collect()) => {}
        () = answering.run(&client, &view) => {}
        () = signal_first(view.subscribe(), first) => {}
        () = view.closed() => {}
    }
}

/// Runs all followers at once. None of them ends.
async fn all<F: Future<Output = ()> + Unpin>(mut running: Vec<F>) {
    std::future::poll_fn(|context| {
        for one in &mut running {
            let _ = Pin::new(one).poll(context);
        }
        Poll::Pending
    })
    .await
}

/// Waits until every kind is known or has failed.
async fn signal_first(mut view: watch::Receiver<View>, first: &First) {
    if view.wait_for(|view| !view.is_waiting()).await.is_ok() {
        let _ = first.try_send(Ok(()));
    }
    drop(view);
    std::future::pending().await
}
