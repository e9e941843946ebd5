//! The results of the followers for the sources: always the latest ones, never a queue.

use std::rc::Rc;

use tokio::sync::watch;

use super::failure::Failure;
use super::objects::Watched;
use super::{State, View};

/// The part of one follower. All followers of a cluster share the view.
#[derive(Clone)]
pub(super) struct Board {
    view: Rc<watch::Sender<View>>,
    /// The name of this follower's objects.
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

    /// Records that they are known and followed.
    pub(super) fn watching(&self) {
        let mut back = false;
        self.view.send_if_modified(|view| {
            let before = view.states.insert(self.name.clone(), State::Following);
            back = matches!(before, Some(State::Failing(_))) && view.failure().is_none();
            before != Some(State::Following)
        });
        if back {
            tracing::info!("the cluster API answers again");
        }
    }

    /// Records that they cannot be followed now. Logs it once, and again if a permission turns out to be missing.
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
            tracing::warn!("cluster API {text}; tracer keeps the {} that it knows", self.name);
        }
    }
}
