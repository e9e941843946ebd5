//! Renders `deploy/` with kubectl and Helm: the kustomize overlays, the chart, the plain manifest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;

use crate::causes;
use crate::{packages, sh};

/// A way to deploy. kustomize and the chart must render the same for it.
pub(crate) struct Variant {
    /// The folder in deploy/kustomize.
    pub(crate) overlay: &'static str,
    /// The values of the chart with the same meaning.
    pub(crate) values: &'static str,
}

/// All variants. The check of privileges compares the others with the first.
pub(crate) const VARIANTS: &[Variant] = &[
    Variant { overlay: "base", values: "" },
    Variant { overlay: "overlays/metrics", values: "metrics.enabled=true" },
    Variant { overlay: "overlays/file", values: "output.file.enabled=true" },
    Variant { overlay: "overlays/no-api", values: "api.enabled=false" },
    Variant { overlay: "overlays/kernel-before-5.11", values: "sysResource=true" },
    Variant {
        overlay: "overlays/kubernetes-before-1.30",
        values: r"appArmorProfile=null,podAnnotations.container\.apparmor\.security\.beta\.kubernetes\.io/tracer=unconfined",
    },
    Variant {
        overlay: "overlays/everything",
        values: "metrics.enabled=true,output.file.enabled=true,api.watchEvents=*,api.explain=true,api.condition=true,\
                 sysResource=true",
    },
];

/// kubectl and Helm.
pub(crate) struct Renderer {
    /// Where they are.
    pub(crate) programs: PathBuf,
}

impl Renderer {
    /// `None` if they cannot be fetched.
    pub(crate) fn find() -> Result<Option<Self>> {
        Ok(packages::programs()?.map(|programs| Self { programs }))
    }

    /// The objects of an overlay, as YAML.
    pub(crate) fn kustomize(&self, variant: &Variant) -> Result<String> {
        self.build(&format!("kustomize/{}", variant.overlay))
    }

    /// The objects of a kustomization in `deploy/`, as YAML.
    pub(crate) fn build(&self, folder: &str) -> Result<String> {
        sh::capture(sh::command(self.programs.join("kubectl")).arg("kustomize").arg(place().join(folder)))
    }

    /// The objects of the chart with these values, as YAML.
    pub(crate) fn chart(&self, values: &str) -> Result<String> {
        sh::capture(self.helm("template", values).arg("--skip-tests"))
    }

    /// The pod of the self-test, by kustomize and by the chart.
    pub(crate) fn selftest(&self) -> Result<[String; 2]> {
        let test = "--show-only=templates/tests/selftest.yaml";
        Ok([self.build("kustomize/selftest")?, sh::capture(self.helm("template", "").arg(test))?])
    }

    /// The output of an installation of the chart: the objects, and the notes for the operator.
    pub(crate) fn installation(&self, values: &str) -> Result<String> {
        sh::capture(self.helm("install", values).arg("--dry-run=client"))
    }

    fn helm(&self, action: &str, values: &str) -> Command {
        let mut helm = sh::command(self.programs.join("helm"));
        helm.args([action, "tracer"]).arg(place().join("chart")).args(["--namespace", "tracer", "--set", values]);
        helm
    }
}

pub(crate) fn place() -> PathBuf {
    sh::root().join("deploy")
}

pub(crate) fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The documents of a YAML text that are not empty.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let values: Result<Vec<Value>, _> = documents.map(Value::deserialize).collect();
    Ok(values.context("not YAML")?.into_iter().filter(|value| !value.is_null()).collect())
}

pub(crate) fn kind_and_name(object: &Value) -> String {
    let word = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{}/{}", word("/kind"), word("/metadata/name"))
}

/// Fails with the lines in which `found` differs from `expected`. Keeps both in `target/deploy` for inspection.
pub(crate) fn compare(expected: (&str, &str), found: (&str, &str)) -> Result<()> {
    let place = sh::target().join("deploy");
    fs::create_dir_all(&place)?;
    for (name, text) in [expected, found] {
        fs::write(place.join(name), text)?;
    }
    let mut diff = sh::command("git");
    diff.current_dir(&place).args(["diff", "--no-index", "--no-prefix", "--no-color", "--unified=0"]);
    let output = diff.args([expected.0, found.0]).output().context("cannot start git")?;
    anyhow::ensure!(output.status.success(), "they differ:\n{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

/// The generated files of `deploy/`: `daemonset.yaml` joins the files of the base, with their comments. The alerts
/// list the causes. The chart has copies of the rules and of the dashboard, which is on one line there.
pub(crate) fn generated() -> Result<BTreeMap<PathBuf, String>> {
    let base = place().join("kustomize/base");
    let kustomization: Value = serde_yaml_ng::from_str(&text(&base.join("kustomization.yaml"))?)?;
    let resources = kustomization["resources"].as_array().context("the base has no resources")?;
    let files: Result<Vec<_>> = resources.iter().filter_map(Value::as_str).map(|file| text(&base.join(file))).collect();
    let plain = format!(
        "# `tracer run` on every node: kubectl apply -f deploy/daemonset.yaml\n\
         # Made of deploy/kustomize/base by `cargo xtask bless`: change it there.\n{}",
        files?.join("---\n")
    );
    let alerts = place().join("alerts/tracer.rules.yaml");
    let rules = causes::in_alerts(&text(&alerts)?)?;
    let mut dashboard: Value = serde_json::from_str(&text(&place().join("dashboards/tracer.json"))?)?;
    dashboard.sort_all_objects();
    Ok(BTreeMap::from([
        (place().join("daemonset.yaml"), plain),
        (alerts, rules.clone()),
        (place().join("chart/files/tracer.rules.yaml"), rules),
        (place().join("chart/files/tracer.json"), format!("{dashboard}\n")),
    ]))
}
