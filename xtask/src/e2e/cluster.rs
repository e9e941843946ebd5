//! Uses the cluster with kubectl: a namespace for the test, and a pod for each case.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::cases::Case;
use crate::sh;

/// A cluster, and the name of this machine's node in it.
#[derive(Clone)]
pub(super) struct Cluster {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    pub(super) node: String,
    image: String,
}

/// A namespace that is deleted with its pods when it is dropped.
pub(super) struct Namespace<'a> {
    cluster: &'a Cluster,
    pub(super) name: String,
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        let mut delete = self.cluster.kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
        if let Err(error) = sh::capture(&mut delete) {
            eprintln!("xtask: the namespace {} is left over: {error:#}", self.name);
        }
    }
}

impl Cluster {
    pub(super) fn new(kubectl: &Path, kubeconfig: &Path, node: &str, image: &str) -> Result<Self> {
        let (kubectl, kubeconfig) = (kubectl.to_owned(), kubeconfig.to_owned());
        let cluster = Self { kubectl, kubeconfig, node: node.to_owned(), image: image.to_owned() };
        sh::capture(&mut cluster.kubectl(&["get", "node", node])).with_context(|| format!("look for node {node}"))?;
        Ok(cluster)
    }

    pub(super) fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = sh::command(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }

    pub(super) fn namespace(&self) -> Result<Namespace<'_>> {
        // Unique also within a run, because the deletion of a namespace takes time.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-e2e-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        sh::capture(&mut self.kubectl(&["create", "namespace", &name]))?;
        Ok(Namespace { cluster: self, name })
    }

    pub(super) fn create(&self, namespace: &str, case: &Case) -> Result<()> {
        let manifest = self.pod(namespace, case).to_string();
        sh::feed(&mut self.kubectl(&["create", "-f", "-"]), &manifest).with_context(|| format!("pod {}", case.name))
    }

    fn pod(&self, namespace: &str, case: &Case) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": case.name, "namespace": namespace },
            "spec": {
                "nodeName": self.node,
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{
                    "name": "app", "image": self.image, "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", case.script()],
                    "readinessProbe": case.probe(),
                }],
            },
        })
    }

    /// The address of each pod, once all of them run.
    pub(super) fn addresses(&self, namespace: &str, patience: Duration) -> Result<BTreeMap<String, String>> {
        let limit = format!("--timeout={}s", patience.as_secs());
        let running = "--for=jsonpath={.status.phase}=Running";
        sh::capture(&mut self.kubectl(&["wait", "pods", "--all", "-n", namespace, running, &limit]))?;
        let format = r#"jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}"#;
        let list = sh::capture(&mut self.kubectl(&["get", "pods", "-n", namespace, "-o", format]))?;
        let pair = |line: &str| line.split_once(' ').map(|(name, address)| (name.to_owned(), address.to_owned()));
        Ok(list.lines().filter_map(pair).collect())
    }
}
