//! `tracer run` beside the kubelet: what it says of each pod.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::sh;

/// What was said, by pod.
type Told = BTreeMap<String, Vec<String>>;

/// How long the tracer may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tracer under test.
pub(super) struct Tracer {
    child: Child,
    lines: Receiver<Value>,
    namespace: String,
    told: Told,
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tracer {
    /// Starts it and waits for its `start` record.
    pub(super) fn start(program: &Path, kubeconfig: &Path, node: &str, namespace: &str) -> Result<Self> {
        let mut command = sh::command(program);
        command.args(["run", "-o", "ndjson", "--kubeconfig"]).arg(kubeconfig).env("NODE_NAME", node);
        let mut child = command.stdout(Stdio::piped()).spawn().context("start the tracer")?;
        let stdout = child.stdout.take().context("stdout of the tracer")?;
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                println!("{line}");
                let Ok(record) = serde_json::from_str(&line) else { continue };
                if tx.send(record).is_err() {
                    return;
                }
            }
        });
        let tracer = Self { child, lines, namespace: namespace.to_owned(), told: Told::new() };
        match tracer.lines.recv_timeout(PATIENCE) {
            Ok(record) if record["type"] == "start" => Ok(tracer),
            Ok(record) => bail!("the first record is {record}"),
            Err(error) => bail!("no start record from the tracer: {error}"),
        }
    }

    /// Until what it said is enough, or the time is over.
    pub(super) fn wait(&mut self, patience: Duration, enough: impl Fn(&Told) -> bool) {
        let deadline = Instant::now() + patience;
        while !enough(&self.told) {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(record) => self.take(&record),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Ends it; all that it said.
    pub(super) fn stop(mut self) -> Result<Told> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).context("end the tracer")?;
        let status = self.child.wait()?;
        while let Ok(record) = self.lines.recv_timeout(PATIENCE) {
            self.take(&record);
        }
        if !status.success() {
            bail!("the tracer ended with {status}");
        }
        Ok(std::mem::take(&mut self.told))
    }

    /// Of our pods: what stands last of each attempt would be enough; a label that was revised counts, too.
    fn take(&mut self, record: &Value) {
        let pod = record["k8s"]["pod_name"].as_str().filter(|_| record["k8s"]["namespace"] == self.namespace.as_str());
        let label = record["verdict"]["label"].as_str();
        if let (Some(pod), Some(label)) = (pod, label) {
            let labels = self.told.entry(pod.to_owned()).or_default();
            if !labels.iter().any(|known| known == label) {
                labels.push(label.to_owned());
            }
        }
    }
}
