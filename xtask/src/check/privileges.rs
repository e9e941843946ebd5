//! Least privilege: the objects of `deploy/` must have exactly the privileges that `deploy/privileges.txt` lists.
//! `bless` does not write that file, so each new privilege is a change by hand.
//!
//! This checks only the objects of kustomize. `manifests.rs` checks that the chart renders the same.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::deploy::{Renderer, VARIANTS, compare, documents, kind_and_name, place, text};

/// Fields of a pod and of a container that give no privilege. Every other field is listed.
const HARMLESS_OF_POD: &[&str] = &[
    "containers",
    "nodeSelector",
    "priorityClassName",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "tolerations",
];
const HARMLESS_OF_CONTAINER: &[&str] = &[
    "args",
    "env",
    "image",
    "imagePullPolicy",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "startupProbe",
    "resources",
];

/// A set of lines with one privilege each.
type Lines = BTreeSet<String>;

/// Compares all variants with the list.
pub(crate) fn check() -> Result<()> {
    let Some(renderer) = Renderer::find()? else { return Ok(()) };
    let mut base = Lines::new();
    let mut found = String::new();
    for variant in VARIANTS {
        let objects = documents(&renderer.kustomize(variant)?)?;
        let lines: Lines = objects.iter().flat_map(of_object).collect();
        let more = lines.difference(&base).map(|line| format!("+ {line}\n"));
        let less = base.difference(&lines).map(|line| format!("- {line}\n"));
        found += &format!("\n[{}]\n{}", variant.overlay, more.chain(less).collect::<String>());
        if base.is_empty() {
            base = lines;
        }
    }
    let operators = text(&place().join("operators.yaml"))?;
    for (name, objects) in [("selftest", renderer.build("kustomize/selftest")?), ("operators.yaml", operators)] {
        let lines: Lines = documents(&objects)?.iter().flat_map(of_object).collect();
        found += &format!("\n[{name}]\n{}", lines.iter().map(|line| format!("+ {line}\n")).collect::<String>());
    }
    let list = text(&place().join("privileges.txt"))?;
    // The text above the first blank line explains the list.
    let allowed = list.find("\n\n").map_or("", |end| &list[end + 1..]);
    compare(("privileges-allowed", allowed), ("privileges-found", &found)).context("deploy/privileges.txt")
}

fn of_object(object: &Value) -> Lines {
    let mut lines = Lines::new();
    let pod = match object["kind"].as_str() {
        Some("DaemonSet") => Some(&object["spec"]["template"]["spec"]),
        Some("Pod") => Some(&object["spec"]),
        _ => None,
    };
    if let Some(pod) = pod {
        add(&mut lines, &kind_and_name(object), pod, HARMLESS_OF_POD);
        for container in pod["containers"].as_array().into_iter().flatten() {
            let name = format!("{} container", kind_and_name(object));
            add(&mut lines, &name, container, HARMLESS_OF_CONTAINER);
            let image = container["image"].as_str().unwrap_or_default();
            let version = image.contains(':') && !image.ends_with(":latest");
            lines.insert(format!("{name} has an image with a version: {version}"));
            lines.insert(format!(
                "{name} has a memory limit: {}",
                container["resources"]["limits"]["memory"].is_string()
            ));
        }
    } else {
        add(&mut lines, &kind_and_name(object), object, &["apiVersion", "kind", "metadata"]);
    }
    lines
}

/// A line for each field, or for each item of a field that is a list.
fn add(lines: &mut Lines, name: &str, object: &Value, harmless: &[&str]) {
    for (field, value) in object.as_object().into_iter().flatten() {
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let listed = items.iter().filter(|_| !harmless.contains(&field.as_str()));
        lines.extend(listed.map(|item| format!("{name} {field} {item}")));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_new_privilege_changes_the_lines() {
        let plain = documents(&text(&place().join("daemonset.yaml")).expect("a file")).expect("YAML");
        let pod = "/spec/template/spec";
        let context = "/spec/template/spec/containers/0/securityContext";
        for (kind, place, field, value) in [
            ("DaemonSet", context, "readOnlyRootFilesystem", json!(false)),
            ("DaemonSet", context, "privileged", json!(true)),
            ("DaemonSet", context, "capabilities", json!({"drop": ["ALL"], "add": ["SYS_MODULE"]})),
            ("DaemonSet", pod, "hostIPC", json!(true)),
            ("DaemonSet", pod, "initContainers", json!([{"name": "x"}])),
            ("DaemonSet", pod, "volumes", json!([{"name": "s", "secret": {"secretName": "x"}}])),
            ("DaemonSet", "/spec/template/spec/containers/0", "image", json!("tracer:latest")),
            ("DaemonSet", "/spec/template/spec/containers/0", "resources", json!({})),
            ("DaemonSet", "/spec/template/spec/containers/0/volumeMounts/1", "readOnly", json!(false)),
            ("ClusterRole", "/rules/0", "resources", json!(["pods", "secrets"])),
            ("ClusterRole", "", "aggregationRule", json!({})),
            ("ClusterRoleBinding", "/roleRef", "name", json!("cluster-admin")),
            ("ServiceAccount", "", "automountServiceAccountToken", json!(true)),
        ] {
            let object = plain.iter().find(|object| object["kind"] == kind).expect("the kind");
            let mut changed = object.clone();
            changed.pointer_mut(place).expect("the place")[field] = value;
            assert_ne!(of_object(object), of_object(&changed), "{kind} {place}/{field}");
        }
    }
}
