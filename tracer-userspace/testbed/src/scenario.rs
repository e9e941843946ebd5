//! The scenarios: each failure and each near miss, made on a node of network namespaces.

use std::iter;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use tracer_model::record::Cause;

use crate::net::Netns;
use crate::node::Family;
use crate::pods::{HTTP, TLS};
use crate::probe::{Ending, Kind};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A node that other scenarios use, too. The tracer is attached before the first one.
    Shared,
    /// Its own node. The scenario says when the tracer is attached, at the latest by its first attempt.
    Own,
}

/// What the tracer of a scenario knows, if it is not as usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// The lists of pods and Services.
    Lists,
    /// The same, and its ring is so small that events are lost.
    ListsAndLosesEvents,
    /// The pods, and a cluster API in place of the list of Services.
    Api,
    /// The pods without their probes, the Services, and a kubelet's log.
    Log,
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

/// The most common scenario: a pod with a server, a fault, and a probe.
#[derive(Clone, Copy)]
pub struct Case {
    /// The mode of the server. Without one, nobody listens.
    server: Option<&'static str>,
    probe: (Kind, u16),
    /// A probe succeeds before the fault.
    succeeds_first: bool,
    /// Makes the fault. Gets the address of the server.
    fault: Fault,
    in_pod: Option<Rules>,
    on_node: Option<Rules>,
    /// How the probe ends.
    how: Ending,
    /// What the verdict must mention.
    names: &'static [&'static str],
    /// What the kubelet logs about the probe.
    kubelet_reports: Option<&'static str>,
}

type Fault = fn(&mut Fixture<'_>, SocketAddr) -> Result<()>;

/// Rules of netfilter as text. `{ip}` is the address of the probed pod.
#[derive(Clone, Copy, Debug)]
pub enum Rules {
    /// Of an input chain of nftables.
    Input(&'static str),
    /// A script of nftables.
    Nft(&'static str),
    /// The input of `iptables-restore`, over nftables.
    Iptables(&'static str),
    /// The same of the old ip_tables.
    Legacy(&'static str),
}

impl Rules {
    const fn needs(self) -> &'static [Need] {
        match self {
            Self::Input(_) | Self::Nft(_) => &[Need::Nft],
            Self::Iptables(_) => &[Need::Iptables],
            Self::Legacy(_) => &[Need::LegacyIptables],
        }
    }

    fn load(self, ns: &Netns, ip: IpAddr) -> Result<()> {
        let with_ip = |text: &str| text.replace("{ip}", &ip.to_string());
        let restore = |program, text| ns.run(program, &["--counters"], &with_ip(text)).map(drop);
        match self {
            Self::Input(rules) => ns.input_rule(&with_ip(rules)),
            Self::Nft(script) => ns.nft(&with_ip(script)),
            Self::Iptables(rules) => restore("iptables-nft-restore", rules),
            Self::Legacy(rules) => restore("iptables-legacy-restore", rules),
        }
    }
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
    pub knows: Knows,
    /// Whether the commands of the fix must make the probe succeed: see [`Options::fixes`].
    ///
    /// [`Options::fixes`]: crate::options::Options::fixes
    pub is_fixable: bool,
    /// What [`Fixture::case`] plays.
    pub case: Case,
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
            knows: Knows::Lists,
            is_fixable: true,
            case: Case {
                server: Some("http"),
                probe: (Kind::Http, HTTP),
                succeeds_first: false,
                fault: |_, _| Ok(()),
                in_pod: None,
                on_node: None,
                how: Ending::Timeout,
                names: &[],
                kubelet_reports: None,
            },
            play,
        }
    }

    /// A pod with a server of this mode, and a probe that ends like this. Without a cause, it gets no verdict.
    const fn probed(name: &'static str, cause: Option<Cause>, server: &'static str, how: Ending) -> Self {
        assert!(cause.is_some() || matches!(how, Ending::Ok), "a failure needs a cause");
        let mut new = Self::new(name, cause, |s| s.case());
        new.case.server = Some(server);
        new.case.how = how;
        new
    }

    const fn without_server(mut self) -> Self {
        self.case.server = None;
        self
    }

    const fn https(self) -> Self {
        self.probe(Kind::Https, TLS)
    }

    const fn probe(mut self, kind: Kind, port: u16) -> Self {
        self.case.probe = (kind, port);
        self
    }

    const fn succeeds_first(mut self) -> Self {
        self.case.succeeds_first = true;
        self
    }

    const fn fault(mut self, fault: Fault) -> Self {
        self.case.fault = fault;
        self
    }

    /// Replaces the needs.
    const fn in_pod(mut self, rules: Rules) -> Self {
        self.case.in_pod = Some(rules);
        self.needs(rules.needs())
    }

    /// Replaces the needs. Rules of the legacy iptables stay on the node.
    const fn on_node(mut self, rules: Rules) -> Self {
        if matches!(rules, Rules::Legacy(_)) {
            self.node = Node::Own;
        }
        self.case.on_node = Some(rules);
        self.needs(rules.needs())
    }

    /// The kubelet logs this about the failed probe, which tracer does not know. `{get}` is Go's name of the request.
    const fn kubelet_reports(mut self, output: &'static str) -> Self {
        self.case.kubelet_reports = Some(output);
        self.knows(Knows::Log)
    }

    const fn names(mut self, words: &'static [&'static str]) -> Self {
        self.case.names = words;
        self
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

    const fn knows(mut self, knows: Knows) -> Self {
        self.knows = knows;
        self.own()
    }

    /// The fix is not tried: the server never answers, or a late answer would change the verdict.
    const fn unfixable(mut self) -> Self {
        self.is_fixable = false;
        self
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
