//! The scenarios: each failure and each near miss, provoked on a stage.

use anyhow::Result;
use tracer::classify::label::Label;

use crate::world::Family;

mod firewall;
mod healthy;
mod ipvs;
mod loopback;
pub mod needs;
mod server;
mod stage;

pub use needs::Need;
pub use stage::Stage;

/// Whose node a scenario plays on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// One that others use too; the tracer watches from the start.
    Shared,
    /// One of its own; the scenario says when the tracer begins to watch.
    Own,
}

/// A failure, or a near miss.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The label that its failing attempts get; `None`: nothing is wrong.
    pub label: Option<Label>,
    /// Addresses of its attempts.
    pub family: Family,
    /// What the kernel must have.
    pub needs: &'static [Need],
    /// Where it plays.
    pub node: Node,
    /// What happens.
    pub play: fn(&mut Stage<'_>) -> Result<()>,
}

impl Scenario {
    const fn new(name: &'static str, label: Option<Label>, play: fn(&mut Stage<'_>) -> Result<()>) -> Self {
        Self { name, label, family: Family::V4, needs: &[], node: Node::Shared, play }
    }

    const fn v6(mut self) -> Self {
        self.family = Family::V6;
        self
    }

    const fn needs(mut self, needs: &'static [Need]) -> Self {
        self.needs = needs;
        self
    }

    const fn own(mut self) -> Self {
        self.node = Node::Own;
        self
    }
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Scenario> {
    [healthy::ALL, server::ALL, firewall::ALL, loopback::ALL, ipvs::ALL].concat()
}
