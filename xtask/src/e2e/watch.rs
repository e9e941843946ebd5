//! `tracer run` beside the kubelet: what it says of each pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::sh;
use crate::subject::Subject;

/// What was reported, by pod.
pub(super) type CausesByPod = BTreeMap<String, Vec<String>>;

/// The tracer under test.
pub(super) struct Tracer {
    subject: Subject,
    namespace: String,
    reported: CausesByPod,
}

impl Tracer {
    /// Starts it and waits for its `start` record.
    pub(super) fn start(program: &Path, kubeconfig: &Path, node: &str, namespace: &str) -> Result<Self> {
        let mut command = sh::command(program);
        command.args(["run", "-o", "json", "--kubeconfig"]).arg(kubeconfig).env("NODE_NAME", node);
        let subject = Subject::spawn(command)?;
        println!("{}", subject.start);
        Ok(Self { subject, namespace: namespace.to_owned(), reported: CausesByPod::new() })
    }

    /// Until what it reported is enough, or the time is over.
    pub(super) fn wait(&mut self, patience: Duration, enough: impl Fn(&CausesByPod) -> bool) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !enough(&self.reported) {
            match self.subject.next(deadline.saturating_duration_since(Instant::now()))? {
                Some(record) => take(&record, &self.namespace, &mut self.reported),
                None => break,
            }
        }
        Ok(())
    }

    /// Ends it; all that it reported.
    pub(super) fn stop(mut self) -> Result<CausesByPod> {
        for record in self.subject.stop()? {
            take(&record, &self.namespace, &mut self.reported);
        }
        Ok(self.reported)
    }
}

/// Of our pods: what stands last of each attempt would be enough; a cause that was revised counts, too.
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
