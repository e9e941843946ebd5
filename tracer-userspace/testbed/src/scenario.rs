//! The scenarios: each failure and each near miss, provoked on a stage.

use anyhow::Result;
use tracer_model::record::Cause;

use crate::node::Family;

mod blame;
mod clock;
mod faults;
mod firewall;
mod fixture;
mod flush;
pub mod gaps;
mod halted;
mod healthy;
mod inside;
mod ipvs;
mod loopback;
pub mod needs;
mod path;
mod ports;
mod queue;
mod server;
mod service;
mod startup;
mod translated;
mod two_causes;

pub use fixture::{Fixture, Until};
pub use needs::Need;

/// The node of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// One that others use too; the tracer watches from the start.
    Shared,
    /// One of its own; the scenario says when the tracer begins to watch.
    Own,
}

/// The Service proxy of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// No proxy has a part in it: it is the same under each.
    Any,
    /// kube-proxy with iptables.
    Iptables,
    /// kube-proxy with nftables.
    Nftables,
    /// kube-proxy with IPVS.
    Ipvs,
}

impl Proxy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Any, Self::Iptables, Self::Nftables, Self::Ipvs];

    /// As the results name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// A selection of the scenarios, for kernels other than this machine's. The rules are the same on each kernel; what can
/// differ is the shape of the events. Each selection is part of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Suite {
    /// Every scenario.
    All,
    /// Each kind of event, over IPv4 and IPv6.
    Kernels,
    /// Each program type.
    Smoke,
}

/// A failure, or a near miss.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The cause that its failing attempts get; `None`: nothing is wrong.
    pub cause: Option<Cause>,
    /// What must stand in `also` of every verdict.
    pub also: Option<Cause>,
    /// Addresses of its attempts.
    pub family: Family,
    /// The Service proxy that has a part in it.
    pub proxy: Proxy,
    /// What the kernel must have.
    pub needs: &'static [Need],
    /// Where it plays.
    pub node: Node,
    /// The smallest selection that it is in.
    pub suite: Suite,
    /// The tracer's ring is so small that events are lost.
    pub tiny_ring: bool,
    /// What happens.
    pub play: fn(&mut Fixture<'_>) -> Result<()>,
}

impl Scenario {
    const fn new(name: &'static str, cause: Option<Cause>, play: fn(&mut Fixture<'_>) -> Result<()>) -> Self {
        Self {
            name,
            cause,
            also: None,
            family: Family::V4,
            proxy: Proxy::Any,
            needs: &[],
            node: Node::Shared,
            suite: Suite::All,
            tiny_ring: false,
            play,
        }
    }

    const fn also(mut self, cause: Cause) -> Self {
        self.also = Some(cause);
        self
    }

    const fn v6(mut self) -> Self {
        self.family = Family::V6;
        self
    }

    const fn proxy(mut self, proxy: Proxy) -> Self {
        self.proxy = proxy;
        self
    }

    const fn needs(mut self, needs: &'static [Need]) -> Self {
        self.needs = needs;
        self
    }

    const fn on_every_kernel(mut self) -> Self {
        self.suite = Suite::Kernels;
        self
    }

    const fn smoke(mut self) -> Self {
        self.suite = Suite::Smoke;
        self
    }

    const fn tiny_ring(mut self) -> Self {
        self.tiny_ring = true;
        self.own()
    }

    const fn own(mut self) -> Self {
        self.node = Node::Own;
        self
    }
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    [
        healthy::ALL,
        server::ALL,
        startup::ALL,
        clock::ALL,
        queue::ALL,
        path::ALL,
        flush::ALL,
        ports::ALL,
        firewall::ALL,
        blame::ALL,
        service::ALL,
        loopback::ALL,
        ipvs::ALL,
        faults::ALL,
        two_causes::ALL,
        halted::ALL,
        inside::ALL,
        translated::ALL,
    ]
    .concat()
}
