//! `tracer run` on the node of the kubelet, and the causes that it reports for each pod.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::sh;

/// How long tracer may take to attach, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) type CausesByPod = BTreeMap<String, Vec<String>>;

/// The tracer under test.
pub(super) struct Tracer {
    child: Killed,
    records: Receiver<Value>,
    namespace: String,
    reported: CausesByPod,
}

impl Tracer {
    /// Starts it and waits for its `start` record.
    pub(super) fn start(program: &Path, kubeconfig: &Path, node: &str, namespace: &str) -> Result<Self> {
        let mut command = sh::command(program);
        command.args(["run", "-o", "json", "--kubeconfig"]).arg(kubeconfig).env("NODE_NAME", node);
        let mut child = command.stdout(Stdio::piped()).spawn().context("start tracer")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout of tracer")?);
        let (sender, records) = channel();
        // A line that is no record ends this thread, as if tracer had ended.
        thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .map_while(|line| serde_json::from_str(&line).ok())
                .try_for_each(|it| sender.send(it))
        });
        let tracer =
            Self { child: Killed(child), records, namespace: namespace.to_owned(), reported: CausesByPod::new() };
        let start = tracer.records.recv_timeout(PATIENCE).context("no start record")?;
        ensure!(start["type"] == "start", "the first record is not `start`: {start}");
        println!("{start}");
        Ok(tracer)
    }

    /// Collects records until `enough` is true, the time is over, or tracer has ended.
    pub(super) fn wait(&mut self, patience: Duration, enough: impl Fn(&CausesByPod) -> bool) {
        let deadline = Instant::now() + patience;
        while !enough(&self.reported) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(record) = self.records.recv_timeout(left) else { break };
            take(&record, &self.namespace, &mut self.reported);
        }
    }

    /// Ends tracer, and returns all reported causes. The last record must be `stop`.
    pub(super) fn stop(mut self) -> Result<CausesByPod> {
        kill(Pid::from_raw(self.child.0.id().cast_signed()), Signal::SIGTERM).context("end tracer")?;
        let mut last = Value::Null;
        while last["type"] != "stop" {
            last = self.records.recv_timeout(PATIENCE).context("no stop record from the tracer")?;
            take(&last, &self.namespace, &mut self.reported);
        }
        let status = self.child.0.wait()?;
        // Exit code 1 means that it found a failure.
        ensure!(matches!(status.code(), Some(0 | 1)), "tracer ended with {status}");
        Ok(self.reported)
    }
}

/// A process that is killed when this is dropped.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Adds the cause of a record, if it is about a pod of the test. Causes that are revised later count, too.
pub(super) fn take(record: &Value, namespace: &str, reported: &mut CausesByPod) {
    println!("{record}");
    let pod = record["k8s"]["pod_name"].as_str().filter(|_| record["k8s"]["namespace"] == namespace);
    if let (Some(pod), Some(cause)) = (pod, record["verdict"]["cause"].as_str()) {
        let causes = reported.entry(pod.to_owned()).or_default();
        if !causes.iter().any(|known| known == cause) {
            causes.push(cause.to_owned());
        }
    }
}
