//! Where it plays: three throw-away network namespaces. One has only a loopback, for short
//! connections; the other two are a node and a pod joined by a veth pair, for attempts that fail.
//! The machine's own namespace is not touched.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::PROBER;
use crate::sh;

const LOAD: &str = "trb-load";
const NODE: &str = "trb-node";
const POD: &str = "trb-pod";
/// Nobody listens there.
pub(super) const REFUSED: &str = "10.87.0.2:8080";
/// The pod's firewall drops what comes for it.
pub(super) const DROPPED: &str = "10.87.0.2:8443";

/// The namespaces; gone on drop.
pub(super) struct Stage {
    /// A PodList that knows the pod.
    pub(super) pods: PathBuf,
}

impl Stage {
    /// Makes them.
    pub(super) fn new() -> Result<Self> {
        remove();
        let stage = Self { pods: sh::target().join("bench-pods.json") };
        fs::write(&stage.pods, pod_list().to_string()).context("write the PodList")?;
        for name in [LOAD, NODE, POD] {
            sh::run(sh::command("ip").args(["netns", "add", name]))?;
        }
        ip(NODE, &format!("link add trb0 type veth peer name eth0 netns {POD}\n"))?;
        // TIME_WAIT must neither fill the ports nor its own table: both would turn into what is measured.
        inside(LOAD, "ip link set lo up")?;
        inside(LOAD, "sysctl -qw net.ipv4.ip_local_port_range='1024 65535' net.ipv4.tcp_max_tw_buckets=1000000")?;
        inside(NODE, "ip link set lo up; ip addr add 10.87.0.1/24 dev trb0; ip link set trb0 up")?;
        inside(POD, "ip link set lo up; ip addr add 10.87.0.2/24 dev eth0; ip link set eth0 up")?;
        let chain = "type filter hook input priority 0; tcp dport 8443 drop;";
        inside(POD, &format!("nft 'table inet podfw {{ chain ingress {{ {chain} }}; }}'"))?;
        Ok(stage)
    }

    /// Short connections over the loopback for some seconds.
    pub(super) fn load(&self, comm: &str, threads: u32, seconds: f64) -> Result<Load> {
        self.dialling(comm, threads, seconds, &[])
    }

    /// The same to a port where nobody listens: more of them than two cores can make that are answered.
    pub(super) fn refused(&self, comm: &str, threads: u32, seconds: f64) -> Result<Load> {
        self.dialling(comm, threads, seconds, &["--refused"])
    }

    fn dialling(&self, comm: &str, threads: u32, seconds: f64, how: &[&str]) -> Result<Load> {
        let mut command = within(LOAD, &sh::release_bin("load"));
        command.args(how);
        command.args(["--comm", comm, "--threads", &threads.to_string(), "--seconds", &seconds.to_string()]);
        let child = command.stdout(Stdio::piped()).spawn().context("start load")?;
        Ok(Load(Running(child)))
    }

    /// Pods by the hundred: their addresses in one namespace, where one server answers for all.
    pub(super) fn crowd(&self, addresses: &[String], port: u16) -> Result<Running> {
        let lines = addresses.iter().map(|address| format!("addr add {address}/32 dev eth0\n"));
        ip(POD, &lines.collect::<String>())?;
        let routes = addresses.iter().map(|address| format!("route add {address}/32 via 10.87.0.2\n"));
        ip(NODE, &routes.collect::<String>())?;
        let mut command = within(POD, &sh::release_bin("pod"));
        command.args(["http", &format!("0.0.0.0:{port}")]);
        let mut child = command.stdout(Stdio::piped()).spawn().context("start pod")?;
        let stdout = child.stdout.take().context("stdout of pod")?;
        let server = Running(child);
        BufReader::new(stdout).read_line(&mut String::new()).context("pod is silent")?;
        Ok(server)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    for name in [LOAD, NODE, POD] {
        let _ = sh::command("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
    }
}

fn ip(namespace: &str, lines: &str) -> Result<()> {
    sh::feed(sh::command("ip").args(["-n", namespace, "-batch", "-"]), lines)
}

fn inside(namespace: &str, script: &str) -> Result<()> {
    sh::run(sh::command("ip").args(["netns", "exec", namespace, "sh", "-ec", script]))
}

/// A program inside a namespace; nsenter becomes it, so the pid is its own.
fn within(namespace: &str, program: &Path) -> Command {
    let mut command = sh::command("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    command
}

/// The `kubelet` program under another name, which becomes its process's.
fn prober() -> Result<PathBuf> {
    let link = sh::target().join(PROBER);
    let _ = fs::remove_file(&link);
    symlink(sh::release_bin("kubelet"), &link).with_context(|| format!("make {}", link.display()))?;
    Ok(link)
}

fn pod_list() -> Value {
    let container = |name: &str, port: u16| {
        json!({"name": name, "ports": [{"containerPort": port}],
               "readinessProbe": {"tcpSocket": {"port": port}, "timeoutSeconds": 1, "periodSeconds": 10}})
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [{
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "bench", "namespace": "default", "uid": "7d1c0f52-0000-4000-8000-000000000001"},
        "spec": {"nodeName": "node-1", "containers": [container("app", 8080), container("tls", 8443)]},
        "status": {"phase": "Running", "podIP": "10.87.0.2", "podIPs": [{"ip": "10.87.0.2"}]},
    }]})
}

/// A process; killed on drop.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running load.
pub(super) struct Load(Running);

impl Load {
    /// Waits for its end; connections, seconds, connections per second.
    pub(super) fn finish(mut self) -> Result<Made> {
        let mut printed = String::new();
        self.0.0.stdout.take().context("stdout of load")?.read_to_string(&mut printed)?;
        let status = self.0.0.wait()?;
        ensure!(status.success(), "load ended with {status}");
        let said: Value = serde_json::from_str(&printed).context("what load printed")?;
        let number = |key: &str| said[key].as_f64().with_context(|| format!("{key} of load"));
        Ok(Made {
            connections: number("connections")?,
            seconds: number("seconds")?,
            per_second: number("connects_per_s")?,
            cpu_us: number("cpu_s")? * 1e6 / number("connections")?,
        })
    }
}

/// What a load did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    /// Connections.
    pub(super) connections: f64,
    /// Seconds.
    pub(super) seconds: f64,
    /// Rate.
    pub(super) per_second: f64,
    /// Processor time of one connection, both ends, microseconds: others on the machine hardly change it.
    pub(super) cpu_us: f64,
}

/// The `kubelet` program.
pub(super) struct Prober {
    _running: Running,
    stdin: ChildStdin,
    answers: Receiver<()>,
}

impl Prober {
    /// On the node.
    pub(super) fn start() -> Result<Self> {
        let mut command = within(NODE, &prober()?);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start kubelet")?;
        let (stdin, stdout) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let (tell, answers) = channel();
        thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|_| tell.send(())));
        let prober = Self { _running: Running(child), stdin, answers };
        prober.await_answers(1)?;
        Ok(prober)
    }

    /// Makes attempts, one every `pace`, and waits for the end of the last.
    pub(super) fn attempts(&mut self, dst: &str, count: usize, pace: Duration) -> Result<()> {
        self.asks("tcp", std::iter::repeat_n(dst.to_owned(), count), pace)
    }

    /// The same, each to another target.
    pub(super) fn asks(&mut self, kind: &str, targets: impl Iterator<Item = String>, pace: Duration) -> Result<()> {
        let (begun, mut made) = (Instant::now(), 0);
        for dst in targets {
            let dial = json!({"ask": "dial", "dst": dst, "kind": kind, "timeout_ms": 200, "linger": true});
            writeln!(self.stdin, "{dial}").context("ask kubelet")?;
            made += 1;
            thread::sleep((pace * made).saturating_sub(begun.elapsed()));
        }
        self.await_answers(made as usize)
    }

    fn await_answers(&self, count: usize) -> Result<()> {
        (0..count).try_for_each(|_| self.answers.recv_timeout(Duration::from_secs(10))).context("kubelet is silent")
    }
}
