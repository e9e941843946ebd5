//! The cluster, by kubectl: a namespace of our own, a pod for each case.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::cases::Case;
use crate::sh;

/// Between two looks at pods that are being made.
const LOOK: &str = "--timeout=5s";

/// A cluster and the node of it that this machine is.
pub(super) struct Cluster {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    node: String,
    image: String,
}

/// A namespace that goes with its value, pods included.
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

    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = sh::command(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }

    pub(super) fn namespace(&self) -> Result<Namespace<'_>> {
        let name = format!("tracer-e2e-{}", std::process::id());
        sh::capture(&mut self.kubectl(&["create", "namespace", &name]))?;
        Ok(Namespace { cluster: self, name })
    }

    pub(super) fn create(&self, namespace: &str, case: &Case) -> Result<()> {
        let manifest = self.pod(namespace, case).to_string();
        let mut child = self.kubectl(&["create", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        child.stdin.take().context("stdin of kubectl")?.write_all(manifest.as_bytes())?;
        let status = child.wait()?;
        if !status.success() {
            bail!("pod {}: kubectl create ended with {status}", case.name);
        }
        Ok(())
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
    pub(super) fn addresses(
        &self,
        namespace: &str,
        cases: &[&Case],
        patience: Duration,
    ) -> Result<BTreeMap<String, String>> {
        let deadline = Instant::now() + patience;
        loop {
            let list = sh::capture(&mut self.kubectl(&["get", "pods", "-n", namespace, "-o", "json"]))?;
            let found = running(&serde_json::from_str(&list)?);
            if cases.iter().all(|case| found.contains_key(case.name)) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("only {} of {} pods run after {patience:?}", found.len(), cases.len());
            }
            // kubectl waits for us until one of them changes; that none did in time is no error.
            let missing = cases.iter().find(|case| !found.contains_key(case.name)).map_or("", |case| case.name);
            let pod = format!("pod/{missing}");
            let _ = sh::capture(&mut self.kubectl(&[
                "wait",
                "-n",
                namespace,
                &pod,
                "--for=condition=ContainersReady",
                LOOK,
            ]));
        }
    }
}

/// Name and address of the pods whose container runs.
fn running(list: &Value) -> BTreeMap<String, String> {
    let item = |item: &Value| {
        let started = !item["status"]["containerStatuses"][0]["state"]["running"].is_null();
        let pair = (item["metadata"]["name"].as_str()?.to_owned(), item["status"]["podIP"].as_str()?.to_owned());
        started.then_some(pair)
    };
    list["items"].as_array().into_iter().flatten().filter_map(item).collect()
}
