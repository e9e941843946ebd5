//! How the cost grows with the node: each part of it at three sizes, about tenfold from one to the next.
//!
//! Every size is measured in the same way:
//!
//! 1. tracer starts.
//! 2. For some time there are only attempts to healthy pods.
//! 3. The same, and the pod's firewall drops some attempts. For each of them tracer inspects the target, reads the rules
//!    of the pod and its sockets. A file that grows is also written again before each.
//! 4. Some attempts are refused. They show the latency of a verdict that needs no answer.
//!
//! Processor time counts all threads of tracer, and programs of hooks do not count.

use std::any::Any;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tracer_testbed::net::{Netns, own_name};
use tracer_testbed::node::ipvs;
use tracer_testbed::pods;
use tracer_testbed::probe::Kind;
use tracer_testbed::proc::Proc;
use tracer_tests::stats::Sample;

use super::Plan;
use super::node::{PORT, pods_at};
use super::report::{Row, Target};
use super::stage::{DROPPED, Prober, REFUSED, Stage, bench_pod};
use super::subject::{Line, Subject, cpu_seconds_of, memory_of};

/// Pods where something else grows.
const PODS: usize = 25;
/// Attempts a second for each pod: three probes in ten seconds.
const RATE: f64 = 0.3;
/// How long a dropped attempt waits: long enough for the inspection, and for the answers before its end.
const PATIENCE: Duration = Duration::from_secs(1);
/// Seconds between two dropped attempts.
const PACE: f64 = 2.0;
const REFUSALS: usize = 20;
/// The target: ten times the size may cost ten times as much, and what is measured scatters.
const TENFOLD: f64 = 12.0;

/// What is measured at each size, with its unit.
const MEASURES: [(&str, &str); 7] = [
    ("processor time of a start", "ms"),
    ("processor time in the steady state", "ms/s"),
    ("processor time of a dropped attempt", "ms"),
    ("anonymous memory", "MiB"),
    ("start to the first record", "ms"),
    ("latency of connection_refused", "ms"),
    ("latency of firewall_drop", "ms"),
];
/// The first of them depend little on what else the machine does. Only these have a target and a plot.
pub(super) const STEADY_MEASURES: usize = 4;

/// A part of the node that grows.
struct Growth {
    what: &'static str,
    sizes: [usize; 3],
    /// Replaces what it laid out before.
    lay_out: fn(&Site<'_>, usize) -> Result<Layout>,
}

/// Connections in TIME_WAIT stay for a minute, so they come last.
const GROWTHS: [Growth; 7] = [
    Growth { what: "pods", sizes: [3, 25, 250], lay_out: pods },
    Growth { what: "Services in a file", sizes: [50, 500, 5_000], lay_out: services },
    Growth { what: "network namespaces", sizes: [20, 200, 2_000], lay_out: namespaces },
    Growth { what: "nftables rules", sizes: [200, 2_000, 20_000], lay_out: nftables },
    Growth { what: "legacy iptables rules", sizes: [200, 2_000, 20_000], lay_out: iptables },
    Growth { what: "IPVS services", sizes: [50, 500, 5_000], lay_out: ipvs_services },
    Growth { what: "sockets in TIME_WAIT", sizes: [640, 6_400, 64_000], lay_out: time_wait },
];

/// One measure of one part at its three sizes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Curve {
    pub(super) what: &'static str,
    pub(super) measure: &'static str,
    pub(super) unit: &'static str,
    pub(super) sizes: [usize; 3],
    pub(super) values: [f64; 3],
}

struct Site<'a> {
    stage: &'a Stage,
    addresses: Vec<Ipv4Addr>,
    services: PathBuf,
    _server: Proc,
}

struct Layout {
    pods: usize,
    /// Written again before each dropped attempt.
    rewritten: Option<PathBuf>,
    flags: Vec<String>,
    /// What goes with the layout.
    _held: Box<dyn Any>,
}

impl Layout {
    fn holding(held: impl Any) -> Self {
        Self { pods: PODS, rewritten: None, flags: Vec::new(), _held: Box::new(held) }
    }
}

/// A row for each measure of each part.
pub(super) fn rows(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let addresses: Vec<Ipv4Addr> = (1..=250).map(|n| Ipv4Addr::new(10, 87, 2, n)).collect();
    let server = stage.crowd(&addresses, PORT)?;
    let site = Site { stage, addresses, services: stage.file("services.json"), _server: server };
    let mut rows = Vec::new();
    for growth in &GROWTHS {
        if growth.what.starts_with("IPVS") && !Path::new("/proc/net/ip_vs").exists() {
            eprintln!("growth, {}: left out, because this kernel has no IPVS (a virtual machine has)", growth.what);
            continue;
        }
        rows.extend(of(growth, &site, plan).with_context(|| format!("growth, {}", growth.what))?);
    }
    Ok(rows)
}

fn of(growth: &Growth, site: &Site<'_>, plan: Plan) -> Result<Vec<Row>> {
    let begun = Instant::now();
    let mut measured = [[f64::NAN; 3]; MEASURES.len()];
    for (at, size) in growth.sizes.into_iter().enumerate() {
        let layout = (growth.lay_out)(site, size)?;
        let values = measure(site, &layout, plan)?;
        values.into_iter().zip(&mut measured).for_each(|(value, values)| values[at] = value);
    }
    (growth.lay_out)(site, 0)?;
    eprintln!("growth, {}: {:.1} s", growth.what, begun.elapsed().as_secs_f64());
    let curve = |((measure, unit), values)| Curve { what: growth.what, measure, unit, sizes: growth.sizes, values };
    let curves = MEASURES.into_iter().zip(measured).map(curve).enumerate();
    Ok(curves.map(|(at, curve)| row(curve, at < STEADY_MEASURES)).collect())
}

fn row(curve: Curve, has_target: bool) -> Row {
    let steps = curve.values.windows(2).map(|pair| pair[1] / pair[0]);
    let steepest = Sample::new(steps).max();
    let of_size = |(size, value): (&usize, &f64)| format!("{size}: {value:.2} {}", curve.unit);
    let values: Vec<String> = curve.sizes.iter().zip(&curve.values).map(of_size).collect();
    let row = Row::new(format!("{}, {}: steepest step", curve.what, curve.measure), steepest, "times");
    let row = row.detail(values.join(", ")).data(json!(curve)).curve(curve);
    if has_target { row.target(Target::Below(TENFOLD)) } else { row }
}

/// The plotted measures of each part as a line of the table in docs/performance.md.
pub(super) fn table(curves: &[&Curve]) -> String {
    let shown = |value: &f64| if *value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    let line = |of: &[&Curve]| {
        let sizes = of[0].sizes.map(|size| size.to_string()).join(" / ");
        let cells =
            of.iter().take(STEADY_MEASURES).map(|curve| curve.values.iter().map(shown).collect::<Vec<_>>().join(" / "));
        format!("| {} | {sizes} | {} |\n", of[0].what, cells.collect::<Vec<_>>().join(" | "))
    };
    curves.chunks(MEASURES.len()).map(line).collect()
}

/// Measures one size, in the order of [`MEASURES`].
fn measure(site: &Site<'_>, layout: &Layout, plan: Plan) -> Result<[f64; MEASURES.len()]> {
    site.list_pods(layout.pods)?;
    let flags: Vec<&str> = layout.flags.iter().map(String::as_str).collect();
    let mut prober = Prober::start(site.stage)?;
    let tracer = Subject::start(site.stage, "run", &flags)?;
    let started = cpu_seconds_of(tracer.pid())?;
    // tracer inspects each new target once. That is no part of the permanent cost.
    let targets = site.addresses[..layout.pods].iter().map(|address| SocketAddr::from((*address, PORT))).cycle();
    prober.connect_each(Kind::Http, targets.clone().take(layout.pods), PATIENCE, Duration::from_millis(20))?;
    std::thread::sleep(Duration::from_secs(2));
    // tracer reads the node every ten seconds: both times are multiples of that.
    let dropped = plan.starts.next_multiple_of(5);
    let rate = RATE * layout.pods as f64;
    let (each, pace) = ((rate * PACE) as usize, Duration::from_secs_f64(1.0 / rate));
    let steady =
        cpu_share(&tracer, || prober.connect_each(Kind::Http, targets.clone().take(each * dropped), PATIENCE, pace))?;
    let begun = Instant::now();
    let share = cpu_share(&tracer, || {
        for _ in 0..dropped {
            layout.rewrite()?;
            let with_healthy = std::iter::once(DROPPED).chain(targets.clone().take(each.saturating_sub(1)));
            prober.connect_each(Kind::Http, with_healthy, PATIENCE, pace)?;
        }
        Ok(())
    })?;
    let of_dropped = (share - steady).max(0.0) * begun.elapsed().as_secs_f64() / dropped as f64;
    prober.connect_each(Kind::Tcp, std::iter::repeat_n(REFUSED, REFUSALS), PATIENCE, Duration::from_millis(100))?;
    let memory = memory_of(tracer.pid(), "RssAnon")?;
    let attached = tracer.attached_after.as_secs_f64();
    let lines = tracer.stop()?;
    let [refused, firewall] = ["connection_refused", "firewall_drop"].map(|cause| latency(&lines, cause));
    Ok([started * 1e3, steady * 1e3, of_dropped * 1e3, memory, attached * 1e3, refused?, firewall?])
}

/// The processor time of tracer during some work, as a share of one core.
fn cpu_share(tracer: &Subject, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (worked, begun) = (cpu_seconds_of(tracer.pid())?, Instant::now());
    work()?;
    Ok((cpu_seconds_of(tracer.pid())? - worked) / begun.elapsed().as_secs_f64())
}

/// The median latency of the verdicts with this cause, in milliseconds.
fn latency(lines: &[Line], cause: &str) -> Result<f64> {
    let first = lines.iter().filter(|line| line.is("verdict") && line.record["revises"].is_null());
    let right = first.filter(|line| line.record["verdict"]["cause"] == cause);
    let sample = Sample::new(right.filter_map(|line| line.record["timing"]["detected_after_ms"].as_f64()));
    ensure!(sample.len() > 0, "no verdict {cause}");
    Ok(sample.median())
}

impl Site<'_> {
    /// Writes the PodList with this many pods and the one of the stage.
    fn list_pods(&self, count: usize) -> Result<()> {
        let mut all = pods_at(&self.addresses[..count]);
        all.push(bench_pod());
        fs::write(&self.stage.pods, pods::list(&all).to_string()).context("write the PodList")
    }
}

impl Layout {
    /// Writes the file again, a byte longer, so that tracer reads it.
    fn rewrite(&self) -> Result<()> {
        let Some(path) = &self.rewritten else { return Ok(()) };
        let text = fs::read_to_string(path)?;
        fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }
}

fn pods(site: &Site<'_>, count: usize) -> Result<Layout> {
    Ok(Layout { pods: count, rewritten: Some(site.stage.pods.clone()), ..Layout::holding(()) })
}

fn services(site: &Site<'_>, count: usize) -> Result<Layout> {
    let items: Vec<Value> = (0..count).flat_map(service).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::write(&site.services, list.to_string()).context("write the Services")?;
    let flags = vec!["--services".to_owned(), site.services.display().to_string()];
    Ok(Layout { rewritten: Some(site.services.clone()), flags, ..Layout::holding(()) })
}

/// A Service and its EndpointSlice.
fn service(number: usize) -> [Value; 2] {
    let (name, ip) = (format!("app-{number}"), numbered(96, number));
    [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
               "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80, "protocol": "TCP"}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
               "metadata": {"name": format!("{name}-1"), "namespace": "default",
                            "labels": {"kubernetes.io/service-name": name}},
               "endpoints": [{"addresses": [numbered(97, number)], "conditions": {"ready": true}}]}),
    ]
}

/// Named namespaces, as container runtimes make them, each with one address.
fn namespaces(_: &Site<'_>, count: usize) -> Result<Layout> {
    let made = (0..count).map(|number| {
        let namespace = Netns::create(&own_name(format_args!("growth-{number}")))?;
        namespace.ip(|ip| {
            ip.up("lo")?;
            ip.address(numbered(98, number), 32, "lo")
        })?;
        Ok(namespace)
    });
    Ok(Layout::holding(made.collect::<Result<Vec<Netns>>>()?))
}

/// Rules of the node that go before others, and rules of the pod that the dropped packets pass.
fn nftables(site: &Site<'_>, count: usize) -> Result<Layout> {
    let rules: String = (0..count).map(|n| format!("ip saddr {} tcp dport 9 drop\n", numbered(99, n))).collect();
    let chain = format!("chain rules {{ type filter hook input priority -1;\n{rules}}}\n");
    let script = format!("table ip growth {{}}\ndelete table ip growth\ntable ip growth {{\n{chain}}}\n");
    site.stage.both().into_iter().try_for_each(|namespace| namespace.nft(&script))?;
    Ok(Layout::holding(()))
}

/// Rules of the table that kube-proxy uses, on the node, and rules of the pod that the dropped packets pass.
fn iptables(site: &Site<'_>, count: usize) -> Result<Layout> {
    let rules = |chain: &str, verdict: &str| {
        let rule = |n| format!("-A {chain} -s {}/32 -p tcp -m tcp --dport 9 -j {verdict}\n", numbered(99, n));
        (0..count).map(rule).collect::<String>()
    };
    let nat = format!("*nat\n:KUBE-SERVICES - [0:0]\n{}COMMIT\n", rules("KUBE-SERVICES", "RETURN"));
    let filter = format!("*filter\n:INPUT ACCEPT [0:0]\n{}COMMIT\n", rules("INPUT", "DROP"));
    let [node, pod] = site.stage.both();
    node.run("iptables-legacy-restore", &[], &nat)?;
    pod.run("iptables-legacy-restore", &[], &filter)?;
    Ok(Layout::holding(()))
}

fn ipvs_services(site: &Site<'_>, count: usize) -> Result<Layout> {
    let [node, _] = site.stage.both();
    node.run("ipvsadm", &["-C"], "")?;
    ipvs::cluster_ips(node, u32::try_from(count)?, REFUSED)?;
    Ok(Layout::holding(()))
}

fn time_wait(site: &Site<'_>, count: usize) -> Result<Layout> {
    site.stage.time_wait(count)?;
    Ok(Layout::holding(()))
}

/// An address for each number.
fn numbered(second: u8, number: usize) -> IpAddr {
    let [.., high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, second, high, low).into()
}
