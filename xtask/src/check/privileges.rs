//! Least privilege: what the manifests may ask for is listed here, and anything else is refused. A change of a
//! privilege is a change of this file.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::deploy::{VARIANTS, called};

/// Capabilities; `deploy/kustomize/base/daemonset.yaml` says what each is for.
const CAPABILITIES: &[&str] =
    &["BPF", "PERFMON", "SYS_ADMIN", "SYS_PTRACE", "SYS_RESOURCE", "NET_ADMIN", "DAC_READ_SEARCH", "SYSLOG"];

/// Paths of the node, and whether they may be written to.
const HOST_PATHS: &[(&str, bool)] = &[
    ("/sys/kernel/tracing", true),
    ("/var/log/containers", false),
    ("/sys/fs/cgroup", false),
    ("/var/log/tracer", true),
];

/// What the token may do: API group, resource, verb.
const MAY: &[(&str, &str, &[&str])] = &[("", "pods", &["list", "watch"])];

/// The same, in variants that ask for it.
const MAY_IF_ASKED: &[(&str, &str, &[&str])] = &[
    ("", "services", &["list", "watch"]),
    ("discovery.k8s.io", "endpointslices", &["list", "watch"]),
    ("", "events", &["list", "watch", "create", "patch"]),
    ("", "nodes/status", &["patch"]),
    ("", "nodes/metrics", &["get"]),
    ("", "nodes/pods", &["get"]),
];

/// All variants, by kustomize and by the chart.
pub(crate) fn check() -> Result<()> {
    let mut faults = Vec::new();
    for variant in VARIANTS {
        let asked = variant.name == "everything";
        for objects in [variant.by_kustomize()?, variant.by_chart()?] {
            let found = objects.iter().flat_map(|object| excess(object, asked));
            faults.extend(found.map(|fault| format!("[{}] {fault}", variant.name)));
            if variant.name == "no-api" {
                faults.extend(objects.iter().flat_map(token));
            }
        }
    }
    if !faults.is_empty() {
        bail!("more privileges than {} lists:\n  {}", file!(), faults.join("\n  "));
    }
    Ok(())
}

/// What of an object is too much.
fn excess(object: &Value, asked: bool) -> Vec<String> {
    let name = called(object);
    let found = match object["kind"].as_str().unwrap_or_default() {
        "DaemonSet" => pod(&object["spec"]["template"]["spec"]),
        "ClusterRole" | "Role" => role(object, asked),
        "ClusterRoleBinding" | "RoleBinding" => binding(object),
        "ServiceAccount" if object["automountServiceAccountToken"] != false => {
            vec!["gives its token to every pod".to_owned()]
        }
        "Service" if object["spec"]["clusterIP"] != "None" => vec!["is not headless".to_owned()],
        "Namespace" | "ServiceAccount" | "Service" => Vec::new(),
        _ => vec!["is of a kind that is not listed".to_owned()],
    };
    found.into_iter().map(|fault| format!("{name} {fault}")).collect()
}

fn pod(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut want = |ok: bool, what: &str| found.extend((!ok).then(|| what.to_owned()));
    want(spec["hostIPC"].is_null(), "uses hostIPC");
    want(spec["initContainers"].is_null(), "has init containers");
    want(
        spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault",
        "has not the runtime's seccomp profile",
    );
    let containers = list(&spec["containers"]);
    want(containers.len() == 1, "has not one container");
    found.extend(containers.iter().flat_map(container));
    found.extend(list(&spec["volumes"]).iter().flat_map(|volume| volume_of(volume, containers)));
    found
}

fn container(container: &Value) -> Vec<String> {
    let context = &container["securityContext"];
    let mut found = Vec::new();
    let mut want = |ok: bool, what: &str| found.extend((!ok).then(|| what.to_owned()));
    want(matches!(context["privileged"], Value::Null | Value::Bool(false)), "is privileged");
    want(context["allowPrivilegeEscalation"] == false, "allows privilege escalation");
    want(context["readOnlyRootFilesystem"] == true, "can write to its root file system");
    want(context["seccompProfile"].is_null(), "has a seccomp profile of its own");
    want(context["capabilities"]["drop"] == serde_json::json!(["ALL"]), "does not drop ALL capabilities");
    want(context["procMount"].is_null(), "unmasks /proc");
    want(container["resources"]["limits"]["memory"].is_string(), "has no memory limit");
    let image = container["image"].as_str().unwrap_or_default();
    want(image.contains(':') && !image.ends_with(":latest"), "has an image without a version");
    let added = list(&context["capabilities"]["add"]).iter().filter_map(Value::as_str);
    found.extend(added.filter(|name| !CAPABILITIES.contains(name)).map(|name| format!("adds the capability {name}")));
    found
}

fn volume_of(volume: &Value, containers: &[Value]) -> Vec<String> {
    let kind = |kind: &str| volume.get(kind).is_some();
    if kind("emptyDir") {
        return Vec::new();
    }
    let Some(path) = volume["hostPath"]["path"].as_str() else {
        return vec![format!("has a volume {} that is neither emptyDir nor hostPath", volume["name"])];
    };
    let Some((_, writable)) = HOST_PATHS.iter().find(|(known, _)| *known == path) else {
        return vec![format!("mounts {path} of the node")];
    };
    let mounts = containers.iter().flat_map(|container| list(&container["volumeMounts"]));
    let here = mounts.filter(|mount| mount["name"] == volume["name"]);
    let faulty = here.filter(|mount| mount["readOnly"] != true && !writable);
    faulty.map(|_| format!("can write to {path} of the node")).collect()
}

fn role(role: &Value, asked: bool) -> Vec<String> {
    let mut found = Vec::new();
    if !role["aggregationRule"].is_null() {
        found.push("aggregates other roles".to_owned());
    }
    for rule in list(&role["rules"]) {
        if rule.as_object().is_some_and(|fields| fields.keys().any(|field| field == "nonResourceURLs")) {
            found.push("has rules for paths".to_owned());
        }
        for (group, resource, verb) in triples(rule) {
            let listed = |table: &[(&str, &str, &[&str])]| {
                table.iter().any(|(g, r, verbs)| *g == group && *r == resource && verbs.contains(&verb))
            };
            if !(listed(MAY) || asked && listed(MAY_IF_ASKED)) {
                found.push(format!("may {verb} {resource} of API group {group:?}"));
            }
        }
    }
    found
}

fn triples(rule: &Value) -> Vec<(&str, &str, &str)> {
    let words = |field: &str| list(&rule[field]).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let (groups, resources, verbs) = (words("apiGroups"), words("resources"), words("verbs"));
    let pairs = groups.iter().flat_map(|group| resources.iter().map(move |resource| (*group, *resource)));
    pairs.flat_map(|(group, resource)| verbs.iter().map(move |verb| (group, resource, *verb))).collect()
}

fn binding(binding: &Value) -> Vec<String> {
    let subjects = list(&binding["subjects"]);
    let ours = subjects.iter().all(|subject| {
        subject["kind"] == "ServiceAccount" && subject["name"] == "tracer" && subject["namespace"] == "tracer"
    });
    let mut found = Vec::new();
    found.extend((!ours || subjects.len() != 1).then(|| "binds somebody else".to_owned()));
    found.extend((binding["roleRef"]["name"] != "tracer").then(|| "binds another role".to_owned()));
    found
}

/// A token, or leave to use one, where there must be none.
fn token(object: &Value) -> Option<String> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let pod = &object["spec"]["template"]["spec"];
    let has = match kind {
        "DaemonSet" => pod["automountServiceAccountToken"] != false || !pod["serviceAccountName"].is_null(),
        kind => kind.contains("Role") || kind == "ServiceAccount",
    };
    has.then(|| format!("[no-api] {} has a token or a right", called(object)))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What is found when an object of the base is changed at a place.
    fn with(kind: &str, place: &str, value: Value) -> Vec<String> {
        let mut objects = VARIANTS[0].by_kustomize().expect("the base");
        let object = objects.iter_mut().find(|object| object["kind"] == kind).expect("the kind");
        *object.pointer_mut(place).expect("the place") = value;
        excess(object, false)
    }

    const CONTEXT: &str = "/spec/template/spec/containers/0/securityContext";

    #[test]
    fn each_privilege_more_is_refused() {
        let at = |rest: &str| format!("{CONTEXT}{rest}");
        for (place, value) in [
            (at("/readOnlyRootFilesystem"), json!(false)),
            (at("/allowPrivilegeEscalation"), json!(true)),
            (at("/capabilities/drop"), json!(["NET_RAW"])),
            (at("/capabilities/add"), json!(["BPF", "SYS_MODULE"])),
            (at(""), json!({"privileged": true})),
            ("/spec/template/spec/securityContext".into(), json!({})),
            ("/spec/template/spec/volumes/0/hostPath/path".into(), json!("/")),
            ("/spec/template/spec/volumes/1".into(), json!({"name": "s", "secret": {"secretName": "x"}})),
            ("/spec/template/spec/containers/0/volumeMounts/1/readOnly".into(), json!(false)),
            ("/spec/template/spec/containers/0/image".into(), json!("tracer:latest")),
            ("/spec/template/spec/containers/0/resources".into(), json!({})),
        ] {
            assert_ne!(with("DaemonSet", &place, value.clone()), Vec::<String>::new(), "{place} {value}");
        }
    }

    #[test]
    fn each_right_more_is_refused() {
        for (place, value) in [
            ("/rules/0/resources", json!(["secrets"])),
            ("/rules/0/resources", json!(["*"])),
            ("/rules/0/verbs", json!(["*"])),
            ("/rules/0/apiGroups", json!(["*"])),
            ("/rules/0/resources", json!(["nodes/proxy"])),
            ("/rules/0/resources", json!(["pods/exec"])),
            ("/rules/0", json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create"]})),
            ("/rules/0", json!({"apiGroups": [""], "resources": ["events"], "verbs": ["list"]})),
            ("/rules/0", json!({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]})),
            ("/rules/0", json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]})),
            ("/rules/0", json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]})),
        ] {
            assert_ne!(with("ClusterRole", place, value.clone()), Vec::<String>::new(), "{place} {value}");
        }
        assert_ne!(with("ClusterRoleBinding", "/subjects/0/name", json!("default")), Vec::<String>::new());
        assert_ne!(with("ClusterRoleBinding", "/roleRef/name", json!("cluster-admin")), Vec::<String>::new());
        assert_eq!(with("ClusterRole", "/rules/0/verbs", json!(["list"])), Vec::<String>::new());
    }

    #[test]
    fn a_token_is_seen() {
        let base = VARIANTS[0].by_kustomize().expect("the base");
        assert_eq!(base.iter().filter_map(token).count(), 4);
    }
}
