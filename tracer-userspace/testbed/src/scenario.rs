//! The scenarios: each failure and each near miss, made on a node of network namespaces.

use std::iter;

use anyhow::Result;
use tracer_model::record::Cause;

use crate::node::Family;

mod acceptor;
mod blame;
mod clock;
mod faults;
mod firewall;
mod fixture;
mod flush;
mod halted;
mod healthy;
mod inside;
mod ipvs;
mod links;
mod loopback;
pub mod needs;
mod neighbours;
mod ports;
mod queue;
mod routes;
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
    /// A node that other scenarios use, too. The tracer is attached before the first one.
    Shared,
    /// Its own node. The scenario says when the tracer is attached, at the latest by its first attempt.
    Own,
}

/// The Service proxy of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// No proxy is involved.
    Any,
    /// kube-proxy with iptables.
    Iptables,
    /// kube-proxy with nftables.
    Nftables,
    /// kube-proxy with IPVS.
    Ipvs,
}

impl Proxy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// A selection of the scenarios for other kernels. The rules are the same on each kernel, but the events can differ.
/// Each selection is a subset of the previous one.
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
    pub name: &'static str,
    /// The expected cause of its failing attempts. `None` if nothing is wrong.
    pub cause: Option<Cause>,
    /// A cause that `also` of every verdict must contain.
    pub also: Option<Cause>,
    pub family: Family,
    pub proxy: Proxy,
    /// What the machine must have.
    pub needs: &'static [Need],
    pub node: Node,
    /// The smallest selection that contains it.
    pub suite: Suite,
    /// The selection that contains the same over IPv6, as `<name>_v6`. `None` if that is not a scenario.
    pub twin: Option<Suite>,
    /// The tracer's ring is so small that events are lost.
    pub tiny_ring: bool,
    /// The tracer has a cluster API and no list of Services.
    pub asks_api: bool,
    /// The tracer knows the pods and not their probes, and reads a kubelet's log.
    pub without_specs: bool,
    /// Makes the setup and the fault, and states the expectations.
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
            twin: None,
            tiny_ring: false,
            asks_api: false,
            without_specs: false,
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

    /// Adds the same over IPv6, as `<name>_v6`.
    const fn and_v6(mut self) -> Self {
        self.twin = Some(Suite::All);
        self
    }

    const fn and_v6_on_every_kernel(mut self) -> Self {
        self.twin = Some(Suite::Kernels);
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

    const fn asks_api(mut self) -> Self {
        self.asks_api = true;
        self.own()
    }

    const fn without_specs(mut self) -> Self {
        self.without_specs = true;
        self.own()
    }

    const fn own(mut self) -> Self {
        self.node = Node::Own;
        self
    }

    fn with_twin(self) -> impl Iterator<Item = Self> {
        let twin = self.twin.map(|suite| {
            // Static as the names of the tables.
            let name = format!("{}_v6", self.name).leak();
            Self { name, family: Family::V6, suite, twin: None, ..self }
        });
        iter::once(self).chain(twin)
    }
}

pub fn all() -> Vec<Scenario> {
    [
        healthy::ALL,
        server::ALL,
        startup::ALL,
        clock::ALL,
        queue::ALL,
        links::ALL,
        routes::ALL,
        neighbours::ALL,
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
        acceptor::ALL,
    ]
    .into_iter()
    .flatten()
    .flat_map(|scenario| scenario.with_twin())
    .collect()
}
