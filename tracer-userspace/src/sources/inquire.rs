//! Answers what the core asks of the node while it runs, on threads of their own: reading a large table
//! never holds up the event stream.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::mpsc::Sender;

use super::inspect;
use super::namespaces::{Namespaces, Place};
use super::netfilter;
use crate::ask::Ask;
use crate::event::{Fact, Flow, Netns};

/// Questions that wait at most; more are not asked, and the verdicts do without.
const WAITING: usize = 64;

/// Takes questions. A verdict waits for what a firewall says: that is read beside the rest.
#[derive(Debug)]
pub struct Inquirer {
    targets: Option<SyncSender<Ask>>,
    firewalls: Option<SyncSender<Ask>>,
}

impl Inquirer {
    /// Begins to answer into `tx`.
    #[must_use]
    pub fn start(tx: Sender<Fact>) -> Self {
        Self { firewalls: start("firewalls", tx.clone()), targets: start("inquiries", tx) }
    }

    /// Asks; the answer comes as a fact.
    pub fn ask(&self, ask: Ask) {
        let to = if matches!(ask, Ask::Firewall(..)) { &self.firewalls } else { &self.targets };
        if to.as_ref().is_some_and(|questions| questions.try_send(ask).is_err()) {
            tracing::debug!(?ask, "too many questions wait: left out");
        }
    }
}

fn start(name: &str, tx: Sender<Fact>) -> Option<SyncSender<Ask>> {
    let (questions, waiting) = sync_channel(WAITING);
    let run = move || answer_all(&waiting, &tx);
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    let failed = |error| tracing::error!("the node is not asked about {name}: no thread: {error}");
    thread.map_err(failed).ok().map(|_| questions)
}

fn answer_all(waiting: &Receiver<Ask>, tx: &Sender<Fact>) {
    let mut namespaces = Namespaces::default();
    while let Ok(ask) = waiting.recv() {
        let Some(fact) = answer(ask, &mut namespaces) else { continue };
        if tx.blocking_send(fact).is_err() {
            return;
        }
    }
}

fn answer(ask: Ask, namespaces: &mut Namespaces) -> Option<Fact> {
    match ask {
        Ask::Tls(_) | Ask::Answers(_) | Ask::Ports => None,
        Ask::Firewall(netns, flow) => Some(firewall(netns, flow, namespaces)),
        Ask::Target(from, target, said) => {
            let from = Place { netns: from, path: namespaces.path(from)? };
            Some(Fact::Inspection(Box::new(inspect::read(target, &from, said, namespaces))))
        }
    }
}

/// Always gives an answer: a verdict waits for it.
fn firewall(netns: Netns, flow: Flow, namespaces: &mut Namespaces) -> Fact {
    let read = |path: PathBuf| netfilter::firewall::read(&path, netns, flow);
    let firewall = namespaces.path(netns).map_or_else(|| netfilter::firewall::unreachable(netns), read);
    Fact::Firewall(Box::new(firewall))
}
