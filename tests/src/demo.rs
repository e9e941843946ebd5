//! The node of the demo: pods that fail in different ways, and their causes.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::{Value, json};
use tracer_model::record::Cause;
use tracer_model::record::Outcome as AttemptVerdicts;
use tracer_node::clock::boot_ns;

use tracer_testbed::check::{Attempt, Claim, Expected, Suspect};
use tracer_testbed::helper::Role;
use tracer_testbed::node::{Family, NODE, TestNode, ipvs};
use tracer_testbed::options::Options;
use tracer_testbed::plugin::{reused_pid, run_by_runtime};
use tracer_testbed::pods::{HOST, HTTP, PodSpec, TLS, http_probe, tcp_probe};
use tracer_testbed::probe::{Kind, ProbeRequest};
use tracer_testbed::prober::Prober;
use tracer_testbed::proc::Proc;
use tracer_testbed::scenario::Need;

const NODE_PORT: u16 = 36704;

#[derive(Clone, Debug)]
pub struct Case {
    pub pod: &'static str,
    /// The fault as text.
    pub made: &'static str,
    pub kind: Kind,
    pub dst: SocketAddr,
    /// The expected cause.
    pub cause: Option<Cause>,
    /// The source port that the kernel is made to choose.
    source_port: Option<u16>,
}

/// How a pod is made: name, what is wrong, mode of its server, firewall rule, cause.
type Recipe = (&'static str, &'static str, Option<&'static str>, Option<&'static str>, Option<Cause>);

const PODS: &[Recipe] = &[
    ("web-7c9f6d5b8-4xk2p", "healthy", Some("http"), None, None),
    ("api-6f4d9c7b5-zq8wl", "nothing listens on its port", None, None, Some(Cause::ConnectionRefused)),
    ("reports-5d8b7f9c6-m2vtj", "takes the request and never answers", Some("hang"), None, Some(Cause::SlowResponse)),
    ("legacy-proxy-0", "resets after the request", Some("rst"), None, Some(Cause::MidStreamRst)),
    (
        "payments-84c6bd9f7-h5ngr",
        "a rule in the pod drops",
        Some("http"),
        Some("tcp dport 8080 drop"),
        Some(Cause::FirewallDrop),
    ),
    (
        "ledger-59b8c4d6f-tt7xc",
        "a rule in the pod rejects",
        Some("http"),
        Some("tcp dport 8080 reject with tcp reset"),
        Some(Cause::FirewallReject),
    ),
];

#[derive(Debug)]
pub struct Demo {
    /// Pods that are probed in every round.
    pub cases: Vec<Case>,
    node: TestNode,
    prober: Prober,
    options: Options,
    helpers: Vec<Proc>,
    /// Ports after their first probe. From then on tracer looks for clients of a TLS port.
    touched: Vec<SocketAddr>,
}

impl Demo {
    pub fn new(options: Options) -> Result<Self> {
        let mut node = TestNode::new("demo")?;
        let mut cases = PODS.iter().map(|r| simple_case(&mut node, &options, r)).collect::<Result<Vec<_>>>()?;
        cases.push(tls(&mut node, &options)?);
        if Need::Ipvs.lacking().is_none() {
            cases.push(collision(&mut node, &options)?);
        }
        node.serve(&options, &["http", &format!("[::]:{HOST}")])?;
        let prober = Prober::start(&node.node, &options)?;
        Ok(Self { cases, node, prober, options, helpers: Vec::new(), touched: Vec::new() })
    }

    /// The PodList.
    pub fn pods(&self) -> Value {
        let mut pods: Vec<PodSpec> = self.cases.iter().map(described).collect();
        pods.push(described(&host_case()));
        if let Some(agent) = pods.last_mut() {
            agent.host_network = true;
        }
        tracer_testbed::pods::list(&pods)
    }

    pub fn probe(&mut self, case: &Case, suspect: Option<Suspect>) -> Result<Attempt> {
        if case.cause == Some(Cause::TlsEofNoise) {
            let mut client = self.options.helper(&self.node.node, Role::Load)?;
            client.args(["--https", &case.dst.to_string()]).spawn()?.wait()?;
        }
        let (since_boot_ns, netns) = (boot_ns(), self.node.node.inum());
        if let Some(port) = case.source_port {
            self.node.set_source_port(port)?;
        }
        let outcome = self.prober.probe(ProbeRequest::new(case.kind, case.dst, self.options.probe_timeout))?;
        self.node.reset_source_ports()?;
        let claim = match case.cause {
            None => Claim::Nothing,
            Some(Cause::TlsEofNoise) if !self.touched.contains(&case.dst) => Claim::Perhaps(Cause::TlsEofNoise),
            Some(cause) => Claim::Verdict(expected(cause, suspect)),
        };
        self.touched.push(case.dst);
        Ok(Attempt {
            src: outcome.src,
            dst: case.dst,
            since_boot_ns,
            until_boot_ns: boot_ns(),
            netns,
            prober: self.options.prober.clone(),
            claim,
            same_ports: 1,
            mentions: Vec::new(),
        })
    }

    /// The runtime removes a sandbox, but its pid belongs to another process now. Returns the culprit, too.
    pub fn loopback_incident(&mut self) -> Result<(Case, Suspect)> {
        let reused = reused_pid(&self.node.node, &self.options)?;
        let netns_path = format!("/proc/{}/ns/net", reused.pid());
        let runtime = run_by_runtime(&self.node.node, &self.options, &netns_path, "netlink")?;
        self.helpers.extend([reused, runtime]);
        let suspect = Suspect { comm: "loopback".to_owned(), ancestor: "crio".to_owned(), netns_path };
        Ok((host_case(), suspect))
    }
}

fn expected(cause: Cause, culprit: Option<Suspect>) -> Expected {
    let outcome = if cause == Cause::TlsEofNoise { AttemptVerdicts::Noise } else { AttemptVerdicts::Failure };
    Expected { cause, outcome, probe: true, culprit, place: None, also: None }
}

fn simple_case(node: &mut TestNode, options: &Options, recipe: &Recipe) -> Result<Case> {
    let &(pod, made, mode, rule, cause) = recipe;
    let place = node.pod()?;
    if let Some(mode) = mode {
        place.serve(options, &[mode, &format!("[::]:{HTTP}")])?;
    }
    if let Some(rule) = rule {
        place.ns.input_rule(&format!("{rule};"))?;
    }
    let dst = place.addr(Family::V4, HTTP);
    Ok(Case { pod, made, kind: Kind::Http, dst, cause, source_port: None })
}

/// Adds a pod with a server, and returns the server's address.
fn serving(node: &mut TestNode, options: &Options, mode: &str, port: u16) -> Result<SocketAddr> {
    let pod = node.pod()?;
    pod.serve(options, &[mode, &format!("[::]:{port}")])?;
    Ok(pod.addr(Family::V4, port))
}

fn tls(node: &mut TestNode, options: &Options) -> Result<Case> {
    let dst = serving(node, options, "tls", TLS)?;
    let (pod, made) = ("gateway-7b6f5c9d8-ck9sd", "a TLS server with a tcpSocket probe");
    Ok(Case { pod, made, kind: Kind::Tcp, dst, cause: Some(Cause::TlsEofNoise), source_port: None })
}

fn collision(node: &mut TestNode, options: &Options) -> Result<Case> {
    let (dst, backend) = (serving(node, options, "http", HTTP)?, serving(node, options, "http", HTTP)?);
    ipvs::node_port(&node.node, NODE_PORT, Some(backend))?;
    let (pod, made) = ("nginx-66b6c48dd5-p9wzn", "healthy; the probe's source port is a NodePort of IPVS");
    let cause = Some(Cause::NodeportEphemeralCollision);
    Ok(Case { pod, made, kind: Kind::Http, dst, cause, source_port: Some(NODE_PORT) })
}

/// The hostNetwork pod, probed once `lo` is down.
fn host_case() -> Case {
    let (pod, made) = ("node-agent-9x2lq", "hostNetwork; a CNI plugin sets the node's lo down");
    let dst = (NODE, HOST).into();
    Case { pod, made, kind: Kind::Http, dst, cause: Some(Cause::LoopbackDown), source_port: None }
}

fn described(case: &Case) -> PodSpec {
    let port = case.dst.port();
    let (field, probe) = match case.kind {
        Kind::Tcp => ("livenessProbe", tcp_probe(port, 1)),
        Kind::Http => ("readinessProbe", http_probe(port, "HTTP", 1)),
        Kind::Https => ("readinessProbe", http_probe(port, "HTTPS", 1)),
    };
    let container = json!({"name": "main", "ports": [{"containerPort": port}], field: probe});
    PodSpec {
        name: case.pod.to_owned(),
        ips: vec![case.dst.ip().to_string()],
        host_network: false,
        containers: vec![container],
    }
}
