//! What the followers have to say, where the sources can see it: always the latest, never a queue.

use std::rc::Rc;

use tokio::sync::watch;

use super::failure::Failure;
use super::objects::Watched;
use super::{State, View};

/// Of one follower; all of one cluster share the view.
#[derive(Clone)]
pub(super) struct Board {
    view: Rc<watch::Sender<View>>,
    /// What this follower's objects are called.
    name: String,
}

impl Board {
    pub(super) fn new(view: Rc<watch::Sender<View>>, name: String) -> Self {
        Self { view, name }
    }

    /// All objects that this follower knows.
    pub(super) fn publish<W: Watched>(&self, all: Vec<W::Kept>) {
        self.view.send_modify(|view| W::show(view, &self.name, all));
    }

    /// They are known and followed.
    pub(super) fn watching(&self) {
        let mut back = false;
        self.view.send_if_modified(|view| {
            let before = view.states.insert(self.name.clone(), State::Following);
            back = matches!(before, Some(State::Failing(_))) && view.failure().is_none();
            before != Some(State::Following)
        });
        if back {
            tracing::info!("cluster API reachable again");
        }
    }

    /// They cannot be followed for now. Reported once, and again if it becomes a matter of permission.
    pub(super) fn failed(&self, failure: &Failure) {
        let text = failure.to_string();
        let mut reported = false;
        self.view.send_modify(|view| {
            let refused = matches!(failure, Failure::Unauthenticated | Failure::Forbidden { .. });
            let states = view.states.values();
            reported = states.clone().any(|state| *state == State::Failing(text.clone()))
                || !refused && matches!(view.states.get(&self.name), Some(State::Failing(_)));
            view.states.insert(self.name.clone(), State::Failing(text.clone()));
        });
        if !reported {
            tracing::warn!("cluster API {text}; {} known so far stay", self.name);
        }
    }
}
