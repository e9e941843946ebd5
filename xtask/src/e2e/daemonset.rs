//! tracer as a DaemonSet: an image of this checkout, the manifests of `deploy/`, and the records of the pod.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::cluster::Cluster;
use super::watch::{CausesByPod, Killed, take};
use super::{Case, E2eArgs, node, report};
use crate::deploy::{self, Renderer, VARIANTS};
use crate::dist::Target;
use crate::{image, sh};

/// Objects of `deploy/`, and how they were made.
struct Manifest {
    name: String,
    objects: String,
}

/// Runs all cases with the plain manifest, and restarts parts of the node and the DaemonSet meanwhile. Runs only the
/// first case with each other manifest.
pub(super) fn play(args: &E2eArgs, socket: &Path, cluster: &Cluster, cases: &[&Case]) -> Result<()> {
    let archive = args.archive.clone().map_or_else(|| image::build(&[Target::X86], false), Ok)?;
    sh::step("loading the image", || image::load(&args.ctr, socket, &archive))?;
    let wanted = |it: &Manifest| args.manifest.as_ref().is_none_or(|only| it.name.starts_with(only.as_str()));
    for mut manifest in manifests()?.into_iter().filter(wanted) {
        if manifest.objects.contains(SYS_RESOURCE) && !has_sys_resource()? {
            println!("note  {}: without {SYS_RESOURCE}, which this node cannot give", manifest.name);
            // The capability is on its own line, or the last in a list.
            let own = manifest.objects.replace(&format!("- {SYS_RESOURCE}"), "");
            manifest.objects = own.replace(&format!(", {SYS_RESOURCE}"), "");
        }
        let is_plain = manifest.name == PLAIN;
        let (cases, disturb) = if is_plain { (cases, Some(&args.disturb[..])) } else { (&cases[..1], None) };
        let patience = Duration::from_secs(args.patience);
        let reported = sh::step(&manifest.name, || Scene { cluster, cases, patience }.play(&manifest, disturb))?;
        report(cases, &reported)?;
    }
    Ok(())
}

const PLAIN: &str = "daemonset.yaml";
/// Kernels before 5.11 need it for their maps.
const SYS_RESOURCE: &str = "SYS_RESOURCE";

/// The plain manifest, each overlay, and the chart with the same variants.
fn manifests() -> Result<Vec<Manifest>> {
    let renderer = Renderer::find()?.context("kubectl and helm, which render deploy/, cannot be fetched")?;
    let plain = Manifest { name: PLAIN.to_owned(), objects: deploy::text(&deploy::place().join(PLAIN))? };
    let overlays = VARIANTS.iter().filter(|variant| variant.overlay != "base").map(|variant| {
        let name = variant.overlay.to_owned();
        renderer.kustomize(variant).map(|objects| Manifest { name, objects })
    });
    let charts = VARIANTS.iter().map(|variant| {
        let name = format!("chart {}", variant.values);
        // helm creates the namespace, not the chart.
        let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: tracer}\n---\n";
        renderer.chart(variant.values).map(|objects| Manifest { name, objects: format!("{namespace}{objects}") })
    });
    std::iter::once(Ok(plain)).chain(overlays).chain(charts).collect()
}

/// Whether the node can give this capability: a runtime cannot give one that it lacks.
fn has_sys_resource() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/1/status").context("/proc/1/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).context("no CapBnd of process 1")?;
    Ok(u64::from_str_radix(set.trim(), 16)? >> 24 & 1 == 1)
}

/// Failing pods on a node with the DaemonSet.
struct Scene<'a> {
    cluster: &'a Cluster,
    cases: &'a [&'a Case],
    patience: Duration,
}

impl Scene<'_> {
    /// Returns the reported causes by pod. With `disturb`, it runs these commands, and then replaces the pod of the
    /// DaemonSet.
    fn play(&self, manifest: &Manifest, disturb: Option<&[String]>) -> Result<CausesByPod> {
        let namespace = self.cluster.namespace()?;
        let daemonset = DaemonSet::apply(self.cluster, manifest, self.patience)?;
        let mut reported = CausesByPod::new();
        let mut log = daemonset.log()?;
        for case in self.cases {
            self.cluster.create(&namespace.name, case)?;
        }
        let addresses = self.cluster.addresses(&namespace.name, self.patience)?;
        let _made = node::break_paths(self.cases, &addresses)?;
        self.explained(&log, &namespace.name, &mut reported)?;
        for command in disturb.unwrap_or_default() {
            sh::step(&format!("meanwhile {command}"), || sh::run(sh::command("sh").args(["-ec", command])))?;
            self.explained_again(&log, &namespace.name, &mut reported)?;
        }
        if disturb.is_some() {
            for change in [DaemonSet::delete_pod, DaemonSet::update] {
                change(&daemonset, &log)?;
                log.finish(&namespace.name, &mut reported, self.patience)?;
                log = daemonset.log()?;
                // The new pod must explain each case again.
                let mut by_new = CausesByPod::new();
                self.explained(&log, &namespace.name, &mut by_new)?;
                for (pod, causes) in by_new {
                    reported.entry(pod).or_default().extend(causes);
                }
            }
        }
        daemonset.ensure_stayed_ready()?;
        drop(daemonset);
        log.finish(&namespace.name, &mut reported, self.patience)?;
        Ok(reported)
    }

    /// Waits until each pod has its verdict, or until the time limit. The report names the pods without one.
    fn explained(&self, log: &Log, namespace: &str, reported: &mut CausesByPod) -> Result<()> {
        let is_reported =
            |reported: &CausesByPod, case: &&Case| reported.get(case.name).is_some_and(|causes| case.matches(causes));
        log.wait(namespace, reported, self.patience, |reported, _| {
            self.cases.iter().all(|case| is_reported(reported, case))
        })
        .map(drop)
    }

    /// Waits until a new failure has its verdict.
    fn explained_again(&self, log: &Log, namespace: &str, reported: &mut CausesByPod) -> Result<()> {
        let now = sh::capture(sh::command("date").args(["--utc", "+%Y-%m-%dT%H:%M:%S"]))?;
        let is_new = |record: &Value| {
            record["verdict"].is_object()
                && record["k8s"]["namespace"] == namespace
                && record["time"].as_str().is_some_and(|time| time > now.trim())
        };
        let explained = log.wait(namespace, reported, self.patience, |_, record| is_new(record))?;
        ensure!(explained, "no failure was explained within {} s after it", self.patience.as_secs());
        Ok(())
    }
}

/// A running DaemonSet. Its objects are deleted when it is dropped.
struct DaemonSet<'a> {
    cluster: &'a Cluster,
    manifest: &'a Manifest,
    patience: Duration,
}

impl Drop for DaemonSet<'_> {
    fn drop(&mut self) {
        let mut delete = self.cluster.kubectl(&["delete", "--wait", "-f", "-"]);
        if let Err(error) = sh::feed(delete.stdout(Stdio::null()), &self.manifest.objects) {
            eprintln!("xtask: objects of {} are left over: {error:#}", self.manifest.name);
        }
    }
}

impl<'a> DaemonSet<'a> {
    /// Applies the objects and waits until the pod is ready.
    fn apply(cluster: &'a Cluster, manifest: &'a Manifest, patience: Duration) -> Result<Self> {
        let daemonset = Self { cluster, manifest, patience };
        // kubectl would refuse fields that an older cluster does not know. Without validation, the server drops them.
        let mut apply = cluster.kubectl(&["apply", "--validate=false", "-f", "-"]);
        sh::feed(apply.stdout(Stdio::null()), &manifest.objects)?;
        daemonset.ready()?;
        Ok(daemonset)
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        sh::capture(self.cluster.kubectl(&["--namespace=tracer"]).args(args))
    }

    /// Waits until every pod of the newest template is ready.
    fn ready(&self) -> Result<()> {
        let limit = format!("--timeout={}s", self.patience.as_secs());
        self.kubectl(&["rollout", "status", "daemonset/tracer", &limit]).map(drop)
    }

    /// The records of its pod on this node, from the first one.
    fn log(&self) -> Result<Log> {
        let file = self.manifest.objects.split("--output-file=").nth(1).and_then(|rest| rest.split(['"', '\n']).next());
        if let Some(path) = file {
            let mut tail = sh::command("tail");
            tail.args(["--lines=+1", "--follow=name", "--retry", path]);
            return Ok(Log::of(Carrier::File, tail, path.to_owned(), self.cluster));
        }
        let node = format!("--field-selector=spec.nodeName={},status.phase=Running", self.cluster.node);
        let list =
            self.kubectl(&["get", "pods", "--selector=app.kubernetes.io/name=tracer", &node, "--output=name"])?;
        let [pod] = list.lines().collect::<Vec<_>>()[..] else { bail!("not one pod of the DaemonSet here: {list:?}") };
        let logs = self.cluster.kubectl(&["--namespace=tracer", "logs", "--follow", pod]);
        Ok(Log::of(Carrier::Api, logs, pod.to_owned(), self.cluster))
    }

    fn delete_pod(&self, log: &Log) -> Result<()> {
        self.kubectl(&["delete", "--wait", &log.name])?;
        self.ready()
    }

    /// Changes the template, so that a rolling update replaces the pod.
    fn update(&self, _: &Log) -> Result<()> {
        self.kubectl(&["set", "env", "daemonset/tracer", "TRACER_LOG=info"])?;
        self.ready()
    }

    /// Fails if a readiness or liveness probe of tracer's pod failed. On a slow node its startup probe may fail.
    fn ensure_stayed_ready(&self) -> Result<()> {
        let messages = "--output=jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
        let events = self.kubectl(&["get", "events", "--field-selector=reason=Unhealthy", messages])?;
        // A kubelet also probes a pod that ends, and tracer is not ready then.
        let is_late = |line: &&str| {
            (line.starts_with("Readiness probe failed") && !line.contains(r#""reason":"stopping""#))
                || line.starts_with("Liveness probe failed")
        };
        let failed: Vec<_> = events.lines().filter(is_late).collect();
        ensure!(failed.is_empty(), "probes of tracer's own pod failed:\n  {}", failed.join("\n  "));
        Ok(())
    }
}

/// The records of a pod, each once and without gaps, even if the API server or the runtime restarts meanwhile.
struct Log {
    name: String,
    records: Receiver<Result<Value>>,
}

/// Where the records come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// The log of a pod. It ends with the pod.
    Api,
    /// A file. It may have records of earlier runs.
    File,
}

impl Log {
    fn of(carrier: Carrier, command: Command, name: String, cluster: &Cluster) -> Self {
        let (to, records) = channel();
        let (cluster, pod) = (cluster.clone(), name.clone());
        thread::spawn(move || {
            if let Err(error) = follow(carrier, command, &pod, &cluster, &to) {
                let _ = to.send(Err(error));
            }
        });
        Self { name, records }
    }

    /// Collects records until `enough` is true, the time is over, or the records end. Returns whether `enough` was
    /// true.
    fn wait(
        &self,
        namespace: &str,
        reported: &mut CausesByPod,
        patience: Duration,
        mut enough: impl FnMut(&CausesByPod, &Value) -> bool,
    ) -> Result<bool> {
        let deadline = Instant::now() + patience;
        while let Ok(record) = self.records.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            let record = record?;
            take(&record, namespace, reported);
            if enough(reported, &record) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Collects the remaining records. The last one must be `stop`: then no verdict is lost.
    fn finish(&self, namespace: &str, reported: &mut CausesByPod, patience: Duration) -> Result<()> {
        let stopped = self.wait(namespace, reported, patience, |_, record| record["type"] == "stop")?;
        ensure!(stopped, "the records of {} end without `stop`", self.name);
        Ok(())
    }
}

/// Sends records until `stop`, or until the pod is gone. Starts the command again if the API server, the kubelet or the
/// runtime is away for a while.
fn follow(
    carrier: Carrier,
    mut command: Command,
    pod: &str,
    cluster: &Cluster,
    to: &Sender<Result<Value>>,
) -> Result<()> {
    let (mut next, mut since) = (0, 0);
    loop {
        let mut child = Killed(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
        let stdout = child.0.stdout.take().context("no standard output")?;
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Diagnostics are in the same log.
            let Ok(record) = serde_json::from_str::<Value>(&line) else { continue };
            let seq = record["seq"].as_u64().context("a record without seq")?;
            if carrier == Carrier::File && record["type"] == "start" {
                next = 0;
            }
            if seq < next {
                continue;
            }
            ensure!(seq == next, "{pod}: record {seq} comes after {next} records");
            next += 1;
            if record["type"] == "start" {
                since = record["time_boot_ns"].as_u64().context("a start without time")?;
                // Without the API most cases would pass, too, so check that it can be reached.
                let sources = record["sources"].to_string();
                ensure!(!sources.contains("unreachable"), "{pod} cannot reach the cluster API: {sources}");
            }
            if began_before(&record, since) {
                continue;
            }
            let is_last = carrier == Carrier::Api && record["type"] == "stop";
            if to.send(Ok(record)).is_err() || is_last {
                return Ok(());
            }
        }
        let seen = cluster.kubectl(&["--namespace=tracer", "get", pod]).output()?;
        ensure!(!String::from_utf8_lossy(&seen.stderr).contains("NotFound"), "{pod} is gone and left no `stop` record");
        // The source of the log is away, and no event tells when it is back.
        thread::sleep(Duration::from_millis(300));
    }
}

/// Whether the verdict is about an attempt that began before this tracer started. Then nothing can explain it.
fn began_before(record: &Value, since: u64) -> bool {
    let timeout_s = record["probe"]["timeout_s"].as_u64().unwrap_or(1);
    let ended = record["time_boot_ns"].as_u64().unwrap_or(u64::MAX);
    let is_unmatched = record["verdict"]["cause"] == "unexplained" && record["src"].is_null();
    is_unmatched && record["probe"]["handler"] != "exec" && ended.saturating_sub(timeout_s * 1_000_000_000) < since
}
