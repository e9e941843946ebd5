//! Three network namespaces of the testbed. One has only a loopback device, for short connections. The other two are a
//! node and a pod with a veth pair between them, for attempts that fail.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::json;
use tracer_testbed::helper::{Programs, Role};
use tracer_testbed::ip::Route;
use tracer_testbed::net::{Netns, own_name};
use tracer_testbed::node::sweep::sweep;
use tracer_testbed::options::{Options, Scratch};
use tracer_testbed::pods::{self, PodSpec, tcp_probe};
use tracer_testbed::probe::{Kind, ProbeRequest};
use tracer_testbed::prober::{self, Request};
use tracer_testbed::proc::Proc;

use super::PROBER;

const NODE: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 1);
const POD: Ipv4Addr = Ipv4Addr::new(10, 87, 0, 2);
/// A port of the pod without a listener.
pub(super) const REFUSED: SocketAddr = SocketAddr::new(IpAddr::V4(POD), 8080);
/// The pod's firewall drops packets to this port.
pub(super) const DROPPED: SocketAddr = SocketAddr::new(IpAddr::V4(POD), 8443);

/// The timeout of an attempt, where nothing depends on it.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// The namespaces. They are removed on drop.
pub(super) struct Stage {
    load: Netns,
    node: Netns,
    pod: Netns,
    options: Options,
    /// A PodList that knows the pod.
    pub(super) pods: PathBuf,
    scratch: Scratch,
}

impl Stage {
    pub(super) fn new() -> Result<Self> {
        sweep();
        let named = |name: &str| Netns::create(&own_name(name));
        let (load, node, pod) = (named("bench-load")?, named("bench-node")?, named("bench-pod")?);
        // Sockets in TIME_WAIT must fill neither the port range nor their table, because that would limit the rate. On
        // the loopback their ports are used again after a second.
        load.ip(|ip| ip.up("lo"))?;
        load.sysctl(&[("ipv4/ip_local_port_range", "1024 65535"), ("ipv4/tcp_max_tw_buckets", "1000000")])?;
        node.ip(|ip| ip.veth("trb0", "eth0", pod.as_fd()))?;
        for (namespace, address, device) in [(&node, NODE, "trb0"), (&pod, POD, "eth0")] {
            namespace.ip(|ip| {
                ip.up("lo")?;
                ip.address(address, 24, device)?;
                ip.up(device)
            })?;
        }
        pod.input_rule(&format!("tcp dport {} drop;", DROPPED.port()))?;
        let options = Options { prober: PROBER.to_owned(), ..Options::detect(Programs::beside()?) };
        let scratch = Scratch::new()?;
        let stage = Self { load, node, pod, options, pods: scratch.path().join("pods.json"), scratch };
        fs::write(&stage.pods, pods::list(&[bench_pod()]).to_string()).context("write the PodList")?;
        Ok(stage)
    }

    /// The tracer that is measured, without arguments.
    pub(super) fn tracer(&self) -> Command {
        Command::new(self.options.programs.tracer())
    }

    /// An idle prober in a cgroup of its own.
    pub(super) fn prober_in_cgroup(&self) -> Result<prober::Prober> {
        prober::Prober::start(&self.node, &self.options)
    }

    /// The path of a file that is removed with the stage.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Short connections over the loopback for some seconds.
    pub(super) fn load(&self, comm: &str, seconds: f64) -> Result<Load> {
        self.spawn_load(comm, seconds, &[])
    }

    /// Connects to a port without a listener. Two cores make more of these than of answered connections.
    pub(super) fn refused(&self, comm: &str, seconds: f64) -> Result<Load> {
        self.spawn_load(comm, seconds, &["--refused"])
    }

    fn spawn_load(&self, comm: &str, seconds: f64, how: &[&str]) -> Result<Load> {
        let mut command = self.options.helper(&self.load, Role::Load)?;
        command.args(how);
        command.args(["--comm", comm, "--threads", "4", "--seconds", &seconds.to_string()]);
        Ok(Load { proc: Proc::spawn(command)?, patience: Duration::from_secs_f64(seconds) + self.options.patience })
    }

    /// Leaves this many connections in TIME_WAIT, which lasts a minute. The kernel keeps those of all namespaces in one
    /// table.
    pub(super) fn time_wait(&self, count: usize) -> Result<()> {
        self.load.enter(|| {
            // Each destination has its own source ports.
            let listeners: Vec<TcpListener> =
                (1..=4).map(|n| TcpListener::bind((Ipv4Addr::new(127, 0, 0, n), 0))).collect::<Result<_, _>>()?;
            for listener in listeners.iter().cycle().take(count) {
                let client = TcpStream::connect(listener.local_addr()?)?;
                let server = listener.accept()?;
                // The end that closes first waits.
                drop(client);
                drop(server);
            }
            Ok(())
        })
    }

    pub(super) const fn both(&self) -> [&Netns; 2] {
        [&self.node, &self.pod]
    }

    /// Adds hundreds of pod addresses to one namespace, where one server answers for all.
    pub(super) fn crowd(&self, addresses: &[Ipv4Addr], port: u16) -> Result<Proc> {
        self.pod.ip(|ip| addresses.iter().try_for_each(|address| ip.address(*address, 32, "eth0")))?;
        self.node.ip(|ip| addresses.iter().try_for_each(|address| ip.add(&Route::to_host(*address).via(POD))))?;
        let mut command = self.options.helper(&self.pod, Role::Pod)?;
        command.args(["http", &format!("0.0.0.0:{port}")]);
        let server = Proc::spawn(command)?;
        server.line(self.options.patience)?;
        Ok(server)
    }
}

/// The pod with the ports [`REFUSED`] and [`DROPPED`].
pub(super) fn bench_pod() -> PodSpec {
    let container = |name: &str, port: u16| json!({"name": name, "ports": [{"containerPort": port}], "readinessProbe": tcp_probe(port, 1)});
    let containers = vec![container("app", REFUSED.port()), container("tls", DROPPED.port())];
    PodSpec { name: "bench".to_owned(), ips: vec![POD.to_string()], host_network: false, containers }
}

pub(super) struct Load {
    proc: Proc,
    patience: Duration,
}

impl Load {
    /// What it makes from now on, for some seconds.
    pub(super) fn during(&mut self, seconds: f64) -> Result<Made> {
        let before = self.so_far()?;
        thread::sleep(Duration::from_secs_f64(seconds));
        Ok(Made::between(&before, &self.so_far()?))
    }

    fn so_far(&mut self) -> Result<Totals> {
        self.proc.say("")?;
        Totals::read(&self.proc.line(self.patience)?)
    }

    /// What it made, after its end.
    pub(super) fn finish(mut self) -> Result<Made> {
        let printed = self.proc.finish(self.patience)?.join("\n");
        Ok(Made::between(&Totals::default(), &Totals::read(&printed)?))
    }
}

/// What a load made since its start.
#[derive(Default, Deserialize)]
struct Totals {
    connections: f64,
    seconds: f64,
    cpu_s: f64,
}

impl Totals {
    fn read(line: &str) -> Result<Self> {
        serde_json::from_str(line).with_context(|| format!("what load printed: {line}"))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) connections: f64,
    pub(super) seconds: f64,
    pub(super) per_second: f64,
    /// Processor time of both ends for one connection, in microseconds. Other load on the machine hardly changes it.
    pub(super) cpu_us: f64,
}

impl Made {
    fn between(before: &Totals, now: &Totals) -> Self {
        let (connections, seconds) = (now.connections - before.connections, now.seconds - before.seconds);
        let cpu_us = (now.cpu_s - before.cpu_s) * 1e6 / connections;
        Self { connections, seconds, per_second: connections / seconds, cpu_us }
    }
}

/// The `kubelet` program. It starts an attempt without waiting for the end of the previous one.
pub(super) struct Prober {
    proc: Proc,
    patience: Duration,
}

impl Prober {
    pub(super) fn start(stage: &Stage) -> Result<Self> {
        let proc = Proc::spawn(stage.options.helper(&stage.node, Role::Kubelet)?)?;
        proc.line(stage.options.patience)?;
        Ok(Self { proc, patience: stage.options.patience })
    }

    /// Makes attempts, one every `pace`, and waits for the end of the last.
    pub(super) fn attempts(&mut self, dst: SocketAddr, count: usize, pace: Duration) -> Result<()> {
        self.connect_each(Kind::Tcp, std::iter::repeat_n(dst, count), PATIENCE, pace)
    }

    /// Makes an attempt to each target, one every `pace`, and waits for the end of the last.
    pub(super) fn connect_each(
        &mut self,
        kind: Kind,
        targets: impl Iterator<Item = SocketAddr>,
        timeout: Duration,
        pace: Duration,
    ) -> Result<()> {
        let (begun, mut made) = (Instant::now(), 0);
        for dst in targets {
            let probes = vec![ProbeRequest::new(kind, dst, timeout)];
            self.proc.say(&serde_json::to_string(&Request::InTurn { probes })?)?;
            made += 1;
            thread::sleep((pace * made).saturating_sub(begun.elapsed()));
        }
        (0..made).try_for_each(|_| self.proc.line(self.patience).map(drop))
    }
}
