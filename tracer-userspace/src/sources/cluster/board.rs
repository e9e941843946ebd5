//! What the followers have to say, where the sources can see it: always the latest, never a queue.

use std::rc::Rc;

use tokio::sync::watch;

use super::failure::Failure;
use super::objects::Watched;
use super::{State, View};

/// Shared by the followers of one cluster.
#[derive(Clone)]
pub(super) struct Board {
    view: Rc<watch::Sender<View>>,
}

impl Board {
    pub(super) fn new(view: Rc<watch::Sender<View>>) -> Self {
        Self { view }
    }

    /// All objects of a kind.
    pub(super) fn publish<W: Watched>(&self, all: Vec<W::Kept>) {
        self.view.send_modify(|view| W::show(view, all));
    }

    /// A kind is known and followed.
    pub(super) fn watching(&self, resource: &'static str) {
        let mut back = false;
        self.view.send_if_modified(|view| {
            let before = view.states.insert(resource, State::Following);
            back = matches!(before, Some(State::Failing(_))) && view.failure().is_none();
            before != Some(State::Following)
        });
        if back {
            tracing::info!("cluster API reachable again");
        }
    }

    /// A kind cannot be followed for now. Said once, and again if it becomes a matter of permission.
    pub(super) fn failed(&self, resource: &'static str, failure: &Failure) {
        let text = failure.to_string();
        let mut told = false;
        self.view.send_modify(|view| {
            let refused = matches!(failure, Failure::Unauthenticated | Failure::Forbidden { .. });
            let states = view.states.values();
            told = states.clone().any(|state| *state == State::Failing(text.clone()))
                || !refused && matches!(view.states.get(resource), Some(State::Failing(_)));
            view.states.insert(resource, State::Failing(text.clone()));
        });
        if !told {
            tracing::warn!("cluster API {text}; {resource} known so far stay");
        }
    }
}
