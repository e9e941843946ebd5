//! `deploy/` renders, is valid by Kubernetes' own definitions, and says the same by kustomize and by the chart; every
//! argument it gives to the tracer is one that the tracer takes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::deploy::{VARIANTS, Variant, called, chart, documents, kustomize, place, schema::Kubernetes, text};
use crate::sh;

/// Kinds of the Prometheus operator. Kubernetes does not define them: the chart's and ours are compared instead.
const OF_OPERATOR: &[&str] = &["ServiceMonitor", "PrometheusRule"];

/// Objects by kind and name.
type Objects = BTreeMap<String, Value>;

/// All variants.
pub(crate) fn check() -> Result<()> {
    let kubernetes = Kubernetes::read()?;
    let mut faults = Vec::new();
    for variant in VARIANTS {
        let (kustomize, chart) = (variant.by_kustomize()?, variant.by_chart()?);
        faults.extend(kustomize.iter().chain(&chart).flat_map(|object| invalid(&kubernetes, object)));
        faults.extend(differences(&comparable(kustomize), &comparable(chart)));
        faults.extend(by_kubectl(variant)?);
        faults.extend(by_helm(variant)?);
        for fault in &mut faults {
            if !fault.starts_with('[') {
                *fault = format!("[{}] {fault}", variant.name);
            }
        }
    }
    chart::notes(&[])?;
    faults.extend(monitoring()?);
    faults.extend(arguments()?);
    if !faults.is_empty() {
        bail!("deploy/:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

fn invalid(kubernetes: &Kubernetes, object: &Value) -> Vec<String> {
    match kubernetes.faults(object) {
        Some(faults) => faults,
        None if OF_OPERATOR.iter().any(|kind| object["kind"] == *kind) => Vec::new(),
        None => vec![format!("{}: no such kind of {}", called(object), object["apiVersion"])],
    }
}

/// Without what only one of the two has: the namespace, and the chart's further labels.
fn comparable(objects: Vec<Value>) -> Objects {
    let mut objects: Objects = objects.into_iter().map(|object| (called(&object), object)).collect();
    objects.retain(|name, _| !name.starts_with("Namespace/"));
    for object in objects.values_mut() {
        if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.retain(|name, _| name == "app.kubernetes.io/name");
        }
    }
    objects
}

/// Where two sets of objects differ.
fn differences(ours: &Objects, theirs: &Objects) -> Vec<String> {
    let mut found = Vec::new();
    for name in ours.keys().chain(theirs.keys().filter(|name| !ours.contains_key(*name))) {
        compare(name, ours.get(name).unwrap_or(&Value::Null), theirs.get(name).unwrap_or(&Value::Null), &mut found);
    }
    found
}

fn compare(place: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
                let of = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                compare(&format!("{place}.{name}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{place}[{index}]"), a, b, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push(format!("{place}: {ours} by kustomize, {theirs} by the other")),
    }
}

/// Our rendering is kubectl's, where it is there and knows components (kustomize 4, kubectl 1.21).
fn by_kubectl(variant: &Variant) -> Result<Vec<String>> {
    let Some(overlay) = variant.overlay.filter(|_| has_kustomize()) else { return Ok(Vec::new()) };
    let path = place().join("kustomize").join(overlay);
    let rendered = sh::capture(sh::command("kubectl").arg("kustomize").arg(&path))?;
    let theirs = documents(&rendered, "what kubectl kustomize prints")?;
    let by_name = |objects: Vec<Value>| objects.into_iter().map(|object| (called(&object), object)).collect();
    Ok(differences(&by_name(kustomize::render(&path)?), &by_name(theirs)))
}

fn has_kustomize() -> bool {
    let version = sh::capture(sh::command("kubectl").args(["version", "--client", "--output", "json"]));
    let version = version.ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    version.is_some_and(|version| version["kustomizeVersion"].is_string())
}

/// Our rendering is Helm's, where it is there.
fn by_helm(variant: &Variant) -> Result<Vec<String>> {
    if sh::find("helm").is_none() {
        return Ok(Vec::new());
    }
    let mut helm = sh::command("helm");
    helm.args(["template", chart::RELEASE, "deploy/chart", "--namespace", chart::RELEASE]);
    for (name, value) in variant.values {
        // In YAML a `*` wants quotes, for Helm they are part of the value.
        helm.args(["--set", &format!("{name}={}", value.trim_matches('"'))]);
    }
    let theirs = documents(&sh::capture(&mut helm)?, "what helm template prints")?;
    Ok(differences(&comparable(variant.by_chart()?), &comparable(theirs)))
}

/// The chart's objects for the Prometheus operator are those of the plain files.
fn monitoring() -> Result<Vec<String>> {
    let set = [("enabled", "true"), ("serviceMonitor.enabled", "true"), ("rules.enabled", "true")];
    let set: Vec<_> = set.iter().map(|(name, value)| (format!("metrics.{name}"), *value)).collect();
    let set: Vec<_> = set.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut chart = comparable(chart::render(&set)?);
    chart.retain(|_, object| OF_OPERATOR.iter().any(|kind| object["kind"] == *kind));
    let rules = chart.remove("PrometheusRule/tracer").context("the chart makes no PrometheusRule")?;
    let plain = documents(&text(&place().join("alerts/tracer.rules.yaml"))?, "the rules")?;
    let monitor = text(&place().join("kustomize/components/metrics/monitor.yaml"))?;
    let mut found = differences(&comparable(documents(&monitor, "monitor.yaml")?), &chart);
    compare("PrometheusRule.spec", &plain[0], &rules["spec"], &mut found);
    Ok(found)
}

/// Arguments in the manifests that the tracer does not take.
fn arguments() -> Result<Vec<String>> {
    let build = ["build", "--quiet", "-p", "tracer-userspace", "--bin", "tracer"];
    sh::step("building the tracer whose arguments these are", || sh::run(&mut sh::cargo(&build)))?;
    let help = |command: &str| {
        sh::capture(sh::command(sh::target().join("debug/tracer")).args([command, "--help"])).unwrap_or_default()
    };
    let known = format!("{}\n{}", help("run"), help("health"));
    let takes = |word: &str| match word.strip_prefix("--") {
        Some(_) => known.split([' ', '\n', '=', ',', '[']).any(|other| other == word),
        None => !help(word).is_empty(),
    };
    let unknown = used()?.into_iter().filter(|word| !takes(word));
    Ok(unknown.map(|word| format!("tracer does not take {word}")).collect())
}

/// Sub-commands and flags that the containers are started and probed with, in all variants.
fn used() -> Result<Vec<String>> {
    let mut words = Vec::new();
    let pod_labels = [("metrics.enabled", "true"), ("metrics.podLabels", "true")];
    let charts = VARIANTS.iter().map(Variant::by_chart).chain([chart::render(&pod_labels)]);
    for objects in charts {
        for object in objects? {
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            let probes = ["readinessProbe", "livenessProbe"].map(|probe| &container[probe]["exec"]["command"]);
            let probes = probes.into_iter().flat_map(|command| strings(command).skip(1).collect::<Vec<_>>());
            words.extend(strings(&container["args"]).chain(probes));
        }
    }
    words.sort();
    words.dedup();
    Ok(words)
}

/// The words of a list, each up to its `=`.
fn strings(list: &Value) -> impl Iterator<Item = String> {
    let words = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    words.map(|word| word.split('=').next().unwrap_or(word).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_is_named_by_its_place() {
        let one = |value: Value| Objects::from([("A/x".to_owned(), value)]);
        let ours = one(json!({"a": [1, {"b": 2}], "c": 3}));
        assert_eq!(differences(&ours, &ours.clone()), Vec::<String>::new());
        let found = differences(&ours, &one(json!({"a": [1, {"b": 4}], "c": 3})));
        assert_eq!(found, ["A/x.a[1].b: 2 by kustomize, 4 by the other"]);
        assert_eq!(differences(&ours, &Objects::new()).len(), 1);
        assert_eq!(differences(&Objects::new(), &ours).len(), 1);
    }

    #[test]
    fn the_variants_use_the_flags_that_they_are_about() {
        let used = used().expect("the charts");
        for flag in ["run", "--no-api", "--metrics-listen", "--output-max-size", "health", "--ready"] {
            assert!(used.iter().any(|word| word == flag), "{flag} is not among {used:?}");
        }
    }
}
