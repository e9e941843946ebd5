//! `tracer run` beside the kubelet: what it says of each pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::sh;
use crate::subject::Subject;

/// What was said, by pod.
pub(super) type Told = BTreeMap<String, Vec<String>>;

/// The tracer under test.
pub(super) struct Tracer {
    subject: Subject,
    namespace: String,
    told: Told,
}

impl Tracer {
    /// Starts it and waits for its `start` record.
    pub(super) fn start(program: &Path, kubeconfig: &Path, node: &str, namespace: &str) -> Result<Self> {
        let mut command = sh::command(program);
        command.args(["run", "-o", "json", "--kubeconfig"]).arg(kubeconfig).env("NODE_NAME", node);
        let subject = Subject::spawn(command)?;
        println!("{}", subject.start);
        Ok(Self { subject, namespace: namespace.to_owned(), told: Told::new() })
    }

    /// Until what it said is enough, or the time is over.
    pub(super) fn wait(&mut self, patience: Duration, enough: impl Fn(&Told) -> bool) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !enough(&self.told) {
            match self.subject.next(deadline.saturating_duration_since(Instant::now()))? {
                Some(record) => take(&record, &self.namespace, &mut self.told),
                None => break,
            }
        }
        Ok(())
    }

    /// Ends it; all that it said.
    pub(super) fn stop(mut self) -> Result<Told> {
        for record in self.subject.stop()? {
            take(&record, &self.namespace, &mut self.told);
        }
        Ok(self.told)
    }
}

/// Of our pods: what stands last of each attempt would be enough; a cause that was revised counts, too.
pub(super) fn take(record: &Value, namespace: &str, told: &mut Told) {
    println!("{record}");
    let pod = record["k8s"]["pod_name"].as_str().filter(|_| record["k8s"]["namespace"] == namespace);
    if let (Some(pod), Some(cause)) = (pod, record["verdict"]["cause"].as_str()) {
        let causes = told.entry(pod.to_owned()).or_default();
        if !causes.iter().any(|known| known == cause) {
            causes.push(cause.to_owned());
        }
    }
}
