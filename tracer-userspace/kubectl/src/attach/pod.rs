//! The pod of `attach`: the template of deploy/daemonset.yaml, without the parts that only a DaemonSet needs.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::super::cli::Attach;
use super::super::problem::Problem;
use super::{Image, START};

/// The manifest defines the privileges of tracer on a node, so `attach` takes them from there.
const MANIFEST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/daemonset.yaml"));
pub(super) const CONTAINER: &str = "tracer";

/// The deadline that ends the pod if it is not deleted: the requested time, and the time to pull the image.
pub(super) const fn deadline(args: &Attach) -> Duration {
    args.duration.saturating_add(START)
}

/// The pod for this node, with this kernel if that is known.
pub(super) fn of(args: &Attach, kernel: &str, image: &Image) -> Result<Value, Problem> {
    let mut spec = template_spec().ok_or_else(|| Problem::Found("the manifest has no DaemonSet".into()))?;
    // The pod does not use the API, so it gets no account and no token. It gets no priority class, because some clusters
    // require a quota for that; so the kubelet may evict it under pressure.
    for absent in ["serviceAccountName", "automountServiceAccountToken", "priorityClassName"] {
        spec.remove(absent);
    }
    spec.insert("automountServiceAccountToken".into(), json!(false));
    spec.insert("nodeName".into(), json!(args.node));
    spec.insert("restartPolicy".into(), json!("Never"));
    spec.insert("activeDeadlineSeconds".into(), json!(deadline(args).as_secs()));
    let container = spec.get_mut("containers").and_then(|it| it.get_mut(0)).and_then(Value::as_object_mut);
    let container = container.ok_or_else(|| Problem::Found("the manifest has no container".into()))?;
    // These probes query the daemon's health socket, which `attach` does not have.
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        container.remove(probe);
    }
    // As deploy/kustomize/components/kernel-before-5.11.
    let capabilities = container.get_mut("securityContext").and_then(|it| it.pointer_mut("/capabilities/add"));
    if let Some(capabilities) = capabilities.filter(|_| is_before_5_11(kernel)).and_then(Value::as_array_mut) {
        capabilities.push(json!("SYS_RESOURCE"));
    }
    container.insert("name".into(), json!(CONTAINER));
    container.insert("image".into(), json!(image.name));
    container.insert("args".into(), json!(arguments(args)));
    let secrets: Vec<_> = image.pull_secrets.iter().map(|name| json!({"name": name})).collect();
    spec.insert("imagePullSecrets".into(), json!(secrets));
    let labels = json!({"app.kubernetes.io/name": "tracer-attach"});
    // Clusters before 1.30 drop the field for AppArmor, and read this. Later ones want both to be equal.
    let annotations = json!({format!("container.apparmor.security.beta.kubernetes.io/{CONTAINER}"): "unconfined"});
    let metadata = json!({"generateName": "tracer-attach-", "namespace": args.attach_namespace, "labels": labels,
        "annotations": annotations});
    Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
}

/// Whether maps are charged to RLIMIT_MEMLOCK, by a release such as `5.10.0-28-amd64`.
fn is_before_5_11(kernel: &str) -> bool {
    let mut numbers = kernel.split('.').map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version < (5, 11))
}

/// What tracer in the pod gets: the same flags mean the same there.
fn arguments(args: &Attach) -> Vec<String> {
    let mut all = vec!["attach".into(), "--output=json".into(), format!("--duration={}ms", args.duration.as_millis())];
    let namespace = args.namespace.iter().filter(|_| !args.all_namespaces);
    all.extend(namespace.map(|name| format!("--namespace={name}")));
    all.extend(args.pod.iter().map(|name| format!("--pod={name}")));
    all.extend(args.all_connections.then(|| "--all-connections".into()));
    all
}

fn template_spec() -> Option<serde_json::Map<String, Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(MANIFEST);
    let mut documents = documents.filter_map(|it| Value::deserialize(it).ok());
    let daemon_set = documents.find(|it| it["kind"] == "DaemonSet")?;
    daemon_set.pointer("/spec/template/spec")?.as_object().cloned()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn pod_for(kernel: &str, words: &[&str]) -> Value {
        let cli = Cli::try_parse_from([&["kubectl tracer", "attach"], words].concat()).expect("arguments");
        let Command::Attach(args) = cli.command else { unreachable!() };
        let image = Image { name: "x/tracer:1".into(), pull_secrets: vec!["registry".into()] };
        of(&args, kernel, &image).expect("a pod")
    }

    fn pod(words: &[&str]) -> Value {
        pod_for("6.1.0-13-amd64", words)
    }

    #[test]
    fn the_pod_has_the_privileges_of_the_daemon_set_and_no_token() {
        let (pod, daemon) = (pod(&["n1", "--duration", "5m"]), template_spec().expect("a template"));
        let spec = &pod["spec"];
        for same in ["hostNetwork", "hostPID", "securityContext", "tolerations", "volumes"] {
            assert!(!daemon[same].is_null(), "{same}");
            assert_eq!(spec[same], daemon[same], "{same}");
        }
        let (own, theirs) = (&spec["containers"][0], &daemon["containers"][0]);
        for same in ["securityContext", "volumeMounts", "resources", "env"] {
            assert_eq!(own[same], theirs[same], "{same}");
        }
        assert_eq!(own["args"], json!(["attach", "--output=json", "--duration=300000ms"]));
        assert!(own["livenessProbe"].is_null() && spec["serviceAccountName"].is_null());
        assert_eq!((&spec["automountServiceAccountToken"], &spec["nodeName"]), (&json!(false), &json!("n1")));
        assert_eq!((&spec["activeDeadlineSeconds"], &spec["restartPolicy"]), (&json!(420), &json!("Never")));
        assert_eq!((&own["image"], &spec["imagePullSecrets"]), (&json!("x/tracer:1"), &json!([{"name": "registry"}])));
    }

    #[test]
    fn old_kernels_and_clusters_get_what_the_variants_of_the_daemon_set_have() {
        for (kernel, is_old) in
            [("5.10.0-28-amd64", true), ("4.18.0-553.el8", true), ("5.11.0", false), ("6.18.5+", false), ("", false)]
        {
            assert_eq!(is_before_5_11(kernel), is_old, "{kernel}");
        }
        let old = pod_for("5.10.220-209.869.amzn2.x86_64", &["n1"]);
        let capabilities = &old["spec"]["containers"][0]["securityContext"]["capabilities"]["add"];
        assert!(capabilities.as_array().is_some_and(|all| all.contains(&json!("SYS_RESOURCE"))), "{capabilities}");
        let annotations = json!({"container.apparmor.security.beta.kubernetes.io/tracer": "unconfined"});
        assert_eq!(old["metadata"]["annotations"], annotations);
    }

    #[test]
    fn filters_are_those_of_tracer_in_the_pod() {
        let pod = pod(&["n1", "-n", "shop", "-p", "cart-*", "--all-connections", "--attach-namespace", "debug"]);
        let filters = json!(["--namespace=shop", "--pod=cart-*", "--all-connections"]);
        let given = pod["spec"]["containers"][0]["args"].as_array().expect("arguments");
        assert_eq!(json!(given[3..]), filters);
        assert_eq!(pod["metadata"]["namespace"], "debug");
        let all = self::pod(&["n1", "-n", "shop", "-A"]);
        assert_eq!(all["spec"]["containers"][0]["args"].as_array().map(Vec::len), Some(3), "-A filters nothing");
    }
}
