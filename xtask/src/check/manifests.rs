//! Checks `deploy/`. It is valid by Kubernetes' own definitions, and kustomize and the chart render the same objects.
//! The chart refuses values without an effect, and tracer knows each argument in a container.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::deploy::{Renderer, VARIANTS, compare, documents, kind_and_name, place, text};
use crate::sh::{self, regex};
use crate::tracer;

/// The newest Kubernetes that the manifests are validated for.
const KUBERNETES: &str = "1.36";
/// Kinds of the Prometheus operator. Kubernetes does not define them, so the chart's objects are compared with ours.
const OF_OPERATOR: &[&str] = &["PodMonitor", "PrometheusRule"];

/// Values that the chart refuses, and a part of the reason.
const REFUSED: &[(&str, &str)] = &[
    ("metrics.port=70000", "'/metrics/port': maximum"),
    ("metrics.enabled=yes", "'/metrics/enabled': got string"),
    ("image.pullPolicy=Sometimes", "'/image/pullPolicy'"),
    ("metrics.nothing=1", "'nothing' not allowed"),
    ("api.enabled=false,api.watchEvents=shop", "api.watchEvents does nothing"),
    ("api.enabled=false,api.explain=true", "api.explain does nothing"),
    ("api.enabled=false,api.condition=true", "api.condition does nothing"),
    ("metrics.podLabels=true", "while metrics.enabled is false"),
    ("metrics.podMonitor.enabled=true", "while metrics.enabled is false"),
    ("metrics.dashboard.enabled=true", "while metrics.enabled is false"),
    ("metrics.rules.enabled=true", "while metrics.enabled is false"),
    ("metrics.enabled=true,metrics.address=::", "in brackets: [::]"),
    ("metrics.enabled=true,metrics.address=fd00::1", "in brackets: [::]"),
    ("metrics.enabled=true,metrics.address=127.0.0.1:9464", "in brackets: [::]"),
];

/// Values, and a part of the objects or notes that an installation with them prints.
const ACCEPTED: &[(&str, &str)] = &[
    ("", "kubectl -n tracer logs"),
    ("output.file.enabled=true", "/var/log/tracer/records.ndjson"),
    ("", "privileged -z tracer -n tracer"),
    ("api.enabled=false", "privileged -z default -n tracer"),
    ("metrics.enabled=true,metrics.podLabels=true", "- --metrics-pod-labels"),
    ("metrics.enabled=true,metrics.address=127.0.0.1", "--metrics-listen=127.0.0.1:9464"),
    ("metrics.enabled=true,metrics.address=$(NODE_IP)", "--metrics-listen=$(NODE_IP):9464"),
    ("metrics.enabled=true,metrics.address=[$(NODE_IP)]", "--metrics-listen=[$(NODE_IP)]:9464"),
    ("metrics.enabled=true,metrics.address=[::]", "--metrics-listen=[::]:9464"),
    ("extraArgs={--attempts}", "- \"--attempts\""),
    ("extraEnv[0].name=SSL_CERT_FILE,extraEnv[0].value=/ca/root.pem", "- name: SSL_CERT_FILE"),
    ("extraVolumes[0].name=ca,extraVolumes[0].secret.secretName=root-certificate", "secretName: root-certificate"),
    ("extraVolumeMounts[0].name=ca,extraVolumeMounts[0].mountPath=/ca", "- mountPath: /ca"),
];

pub(crate) fn check() -> Result<()> {
    let Some(renderer) = Renderer::find()? else { return Ok(()) };
    let mut files = Vec::new();
    for variant in VARIANTS {
        let (kustomize, chart) = (renderer.kustomize(variant)?, renderer.chart(variant.values)?);
        let [ours, theirs] = [comparable(documents(&kustomize)?), comparable(documents(&chart)?)];
        compare(("by-kustomize", &ours), ("by-chart", &theirs)).context(variant.overlay)?;
        for (by, text) in [("kustomize", kustomize), ("chart", chart)] {
            let name = format!("{}.{by}.yaml", variant.overlay.replace('/', "-"));
            files.push(sh::target().join("deploy").join(name));
            fs::write(files.last().context("a file")?, text)?;
        }
    }
    let [ours, theirs] = renderer.selftest()?;
    compare(
        ("selftest-by-kustomize", &comparable(documents(&ours)?)),
        ("selftest-by-chart", &comparable(without_hooks(documents(&theirs)?))),
    )?;
    files.extend(["operators.yaml", "kustomize/selftest/pod.yaml"].map(|file| place().join(file)));
    validate(&renderer, &files)?;
    monitoring(&renderer)?;
    job()?;
    values(&renderer)?;
    arguments(&renderer)
}

/// Fails on an object that Kubernetes would refuse.
fn validate(renderer: &Renderer, files: &[PathBuf]) -> Result<()> {
    let mut program = sh::command(renderer.programs.join("kubernetes-validate"));
    let output = program.args(["--strict", "--quiet", "--kubernetes-version", KUBERNETES]).args(files).output()?;
    // The program reports an unknown kind only as a warning.
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let of_operator = |line: &str| {
        OF_OPERATOR.iter().any(|kind| line.contains(&format!("kind {kind} with api version monitoring.coreos.com/v1 ")))
    };
    let faults: Vec<_> = text.lines().filter(|line| !of_operator(line)).collect();
    ensure!(faults.is_empty() && output.status.success(), "not valid:\n  {}", faults.join("\n  "));
    Ok(())
}

/// The objects as text, without the namespace and the chart's extra labels, which only one side has.
fn comparable(mut objects: Vec<Value>) -> String {
    objects.retain(|object| object["kind"] != "Namespace");
    objects.sort_by_key(kind_and_name);
    for object in &mut objects {
        object.sort_all_objects();
        if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.retain(|name, _| name == "app.kubernetes.io/name");
        }
    }
    objects.iter().map(|object| format!("{}\n{object:#}\n", kind_and_name(object))).collect()
}

/// Removes the annotations that mark a test for helm.
fn without_hooks(mut objects: Vec<Value>) -> Vec<Value> {
    objects.iter_mut().filter_map(|object| object["metadata"].as_object_mut()).for_each(|metadata| {
        metadata.remove("annotations");
    });
    objects
}

/// Compares the chart's objects for the Prometheus operator and Grafana with those of the plain files.
fn monitoring(renderer: &Renderer) -> Result<()> {
    let values = "metrics.enabled=true,metrics.podMonitor.enabled=true,metrics.rules.enabled=true,metrics.dashboard.enabled=true";
    let mut theirs = documents(&renderer.chart(values)?)?;
    theirs.retain(|object| object["kind"] == "ConfigMap" || OF_OPERATOR.iter().any(|kind| object["kind"] == *kind));
    let mut ours = documents(&text(&place().join("kustomize/components/metrics/monitor.yaml"))?)?;
    ours.extend(documents(&renderer.build("dashboards")?)?);
    for dashboard in ours.iter_mut().chain(&mut theirs).filter_map(|it| it.pointer_mut("/data/tracer.json")) {
        *dashboard = serde_json::from_str(dashboard.as_str().unwrap_or_default()).context("the dashboard")?;
    }
    let mut rules = theirs.iter().find(|object| object["kind"] == "PrometheusRule").cloned();
    let rules = rules.as_mut().context("the chart makes no PrometheusRule")?;
    rules["spec"] = documents(&text(&place().join("alerts/tracer.rules.yaml"))?)?.remove(0);
    ours.push(rules.take());
    compare(("plain-monitoring", &comparable(ours)), ("monitoring-by-chart", &comparable(theirs)))
}

/// Checks that the rules ask for the job that the PodMonitor gives: the value of a label of tracer's pods.
fn job() -> Result<()> {
    let [monitor, manifest, rules] =
        ["kustomize/components/metrics/monitor.yaml", "daemonset.yaml", "alerts/tracer.rules.yaml"]
            .map(|file| text(&place().join(file)));
    let monitor = documents(&monitor?)?.remove(0);
    let label = monitor["spec"]["jobLabel"].as_str().context("the PodMonitor has no jobLabel")?;
    let objects = documents(&manifest?)?;
    let daemon = objects.iter().find(|object| object["kind"] == "DaemonSet").context("no DaemonSet")?;
    let job = daemon["spec"]["template"]["metadata"]["labels"][label].as_str().context("no pod has the jobLabel")?;
    ensure!(rules?.contains(&format!("up{{job=\"{job}\"}}")), "no rule asks for up of the job {job}");
    Ok(())
}

/// Checks that the chart refuses wrong values, and renders right ones.
fn values(renderer: &Renderer) -> Result<()> {
    for (values, why) in REFUSED {
        match renderer.chart(values) {
            Err(error) if error.to_string().contains(why) => {}
            Err(error) => bail!("{values} is not refused with {why:?} but with {error:#}"),
            Ok(_) => bail!("{values} is not refused: {why}"),
        }
    }
    for (values, part) in ACCEPTED {
        ensure!(renderer.installation(values)?.contains(part), "with {values:?} nothing prints {part:?}");
    }
    let without = renderer.chart("appArmorProfile=null")?;
    ensure!(!without.contains("appArmorProfile"), "appArmorProfile=null does not remove the field");
    Ok(())
}

/// Fails on arguments in the manifests that tracer does not know.
fn arguments(renderer: &Renderer) -> Result<()> {
    tracer::build()?;
    let pod_labels = "metrics.enabled=true,metrics.podLabels=true";
    let mut tried = 0;
    for values in VARIANTS.iter().map(|variant| variant.values).chain([pod_labels]) {
        for command in documents(&renderer.chart(values)?)?.iter().flat_map(commands) {
            // tracer parses the arguments before `--help` first.
            tracer::output(&command.iter().map(String::as_str).chain(["--help"]).collect::<Vec<_>>())?;
            tried += 1;
        }
    }
    ensure!(tried >= 3 * VARIANTS.len(), "only {tried} command lines were found");
    Ok(())
}

/// The arguments of an object's container, and of its exec probes, without the program.
fn commands(object: &Value) -> Vec<Vec<String>> {
    let container = &object["spec"]["template"]["spec"]["containers"][0];
    let words = |list: &Value, skip| -> Vec<String> {
        let list = list.as_array().into_iter().flatten().skip(skip).filter_map(Value::as_str);
        // The kubelet replaces a variable by its value.
        list.map(|word| regex(r"\$\(\w+\)").replace_all(word, "127.0.0.1").into_owned()).collect()
    };
    let probes =
        ["startupProbe", "readinessProbe", "livenessProbe"].map(|it| words(&container[it]["exec"]["command"], 1));
    let mut all = vec![words(&container["args"], 0)];
    all.extend(probes);
    all.retain(|command| !command.is_empty());
    all
}
