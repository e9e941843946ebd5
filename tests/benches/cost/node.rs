//! A full node: 250 pods with three probes each in ten seconds. tracer gets the pods from the cluster API. Meanwhile
//! there are untracked connections at full speed, or untracked connects that are refused. Two cores make more of those
//! in a second than a node ever has. This measures the daemon itself. `throughput` measures the cost of its hooks.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tracer_testbed::api::{self, Answer};
use tracer_testbed::pods::{self, PodSpec, http_probe};
use tracer_testbed::probe::Kind;

use super::footprint::Memory;
use super::report::{Row, Target};
use super::stage::{Load, PATIENCE, Prober, Stage};
use super::subject::{Subject, cpu_seconds_of};
use super::{Plan, UNTRACKED};

const PODS: u8 = 250;
const NODE_NAME: &str = "node-1";
/// The port of all pods.
pub(super) const PORT: u16 = 8081;
/// Attempts a second: three probes of each pod in ten seconds.
const RATE: f64 = 75.0;
/// The target, percent of one core.
const CPU: f64 = 1.0;
/// The target of anonymous memory, MiB.
const MEMORY: f64 = 16.0;

/// Load of other processes on the node.
struct Beside {
    what: &'static str,
    load: fn(&Stage, &str, f64) -> Result<Load>,
}

const BESIDE: [Beside; 2] =
    [Beside { what: "connections", load: Stage::load }, Beside { what: "refused connects", load: Stage::refused }];

/// Two rows for each kind of load.
pub(super) fn rows(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let addresses: Vec<Ipv4Addr> = (1..=PODS).map(|n| Ipv4Addr::new(10, 87, 1, n)).collect();
    let _server = stage.crowd(&addresses, PORT)?;
    let rows: Vec<_> = BESIDE.iter().map(|beside| case(stage, plan, &addresses, beside)).collect::<Result<_>>()?;
    Ok(rows.into_iter().flatten().collect())
}

fn case(stage: &Stage, plan: Plan, addresses: &[Ipv4Addr], beside: &Beside) -> Result<[Row; 2]> {
    let what = beside.what;
    let pods = pod_list(addresses).to_string();
    let kubeconfig = api::serve(stage.file("kubeconfig.json"), move |_, query| answer(query, &pods))?;
    let tracer = Subject::in_cluster(stage, &kubeconfig, NODE_NAME)?;
    let seconds = plan.seconds * 15.0;
    let mut prober = Prober::start(stage)?;
    let load = (beside.load)(stage, UNTRACKED, seconds + addresses.len() as f64 / RATE + 1.0)?;
    let targets = addresses.iter().map(|address| SocketAddr::from((*address, PORT))).cycle();
    let (count, every) = ((seconds * RATE) as usize, Duration::from_secs_f64(1.0 / RATE));
    // tracer inspects each new target once. That is no part of the permanent cost.
    prober.connect_each(Kind::Http, targets.clone().take(addresses.len()), PATIENCE, every)?;
    let (worked, begun) = (cpu_seconds_of(tracer.pid())?, Instant::now());
    prober.connect_each(Kind::Http, targets.take(count), PATIENCE, every)?;
    let (took, worked) = (begun.elapsed().as_secs_f64(), cpu_seconds_of(tracer.pid())? - worked);
    let memory = Memory::of(&tracer)?;
    let untracked = load.finish()?.per_second;
    let ended = tracer.stop()?;
    let seen = ended.last().map_or(Value::Null, |line| line.record["attempts"].clone());
    let detail = format!(
        "{count} attempts in {took:.1} s ({:.0}/s), {seen} seen with the first attempt to each target, {PODS} pods by the cluster API, {untracked:.0} untracked {what}/s; the daemon's own threads",
        count as f64 / took
    );
    let data = json!({"attempts_per_s": count as f64 / took, "foreign_per_s": untracked, "seen": seen});
    let cpu =
        Row::new(format!("a full node, {what}: processor time of the daemon"), 100.0 * worked / took, "% of a core");
    let memory = memory.row(&format!("a full node, {what}: anonymous memory")).target(Target::Below(MEMORY));
    Ok([cpu.target(Target::Below(CPU)).detail(detail).data(data), memory])
}

/// Pods at these addresses, with three probes each.
pub(super) fn pods_at(addresses: &[Ipv4Addr]) -> Vec<PodSpec> {
    let probe = http_probe(PORT, "HTTP", 1);
    let container = json!({"name": "app", "image": "app", "ports": [{"containerPort": PORT}],
                           "startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe});
    let pod = |(n, address): (usize, &Ipv4Addr)| PodSpec {
        name: format!("app-{n}"),
        ips: vec![address.to_string()],
        host_network: false,
        containers: vec![container.clone()],
    };
    addresses.iter().enumerate().map(pod).collect()
}

/// Answers as a server before 1.32, without streaming lists. The list does not change.
fn answer(query: &str, pods: &str) -> Answer {
    match (query.contains("sendInitialEvents="), query.contains("watch=")) {
        (true, _) => Answer::Whole("400 Bad Request", r#"{"kind":"Status","code":400}"#.to_owned()),
        (false, true) => Answer::Watch,
        (false, false) => Answer::Whole("200 OK", pods.to_owned()),
    }
}

fn pod_list(addresses: &[Ipv4Addr]) -> Value {
    let mut list = pods::list(&pods_at(addresses));
    list["kind"] = json!("PodList");
    list["metadata"]["resourceVersion"] = json!("1");
    list
}
