//! What `deploy/` renders to: the kustomize overlays, the Helm chart, the plain manifest.
//!
//! Neither kubectl nor helm is needed: the little of both that our own files use is done here, so that a clean clone can
//! be checked without a network. Where the programs are installed, their results must be the same (`check/manifests.rs`).

pub(crate) mod chart;
pub(crate) mod kustomize;
pub(crate) mod schema;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;

use crate::sh;

/// One way to deploy: what kustomize and the chart must render alike.
pub(crate) struct Variant {
    /// What it is called.
    pub(crate) name: &'static str,
    /// The folder in deploy/kustomize; none: `components` over the base.
    pub(crate) overlay: Option<&'static str>,
    /// Components that are laid over the base where there is no overlay.
    pub(crate) components: &'static [&'static str],
    /// The values of the chart that mean the same.
    pub(crate) values: &'static [(&'static str, &'static str)],
}

/// All of them.
pub(crate) const VARIANTS: &[Variant] = &[
    Variant { name: "base", overlay: Some("base"), components: &[], values: &[] },
    Variant {
        name: "metrics",
        overlay: Some("overlays/metrics"),
        components: &[],
        values: &[("metrics.enabled", "true")],
    },
    Variant {
        name: "file",
        overlay: Some("overlays/file"),
        components: &[],
        values: &[("output.file.enabled", "true")],
    },
    Variant { name: "no-api", overlay: Some("overlays/no-api"), components: &[], values: &[("api.enabled", "false")] },
    Variant {
        name: "everything",
        overlay: None,
        components: &["metrics", "file", "api-services", "watch-events", "explain", "condition", "kubelet"],
        values: &[
            ("metrics.enabled", "true"),
            ("output.file.enabled", "true"),
            ("api.services", "true"),
            ("api.watchEvents", "\"*\""),
            ("api.explain", "true"),
            ("api.condition", "true"),
            ("api.kubelet", "true"),
        ],
    },
];

impl Variant {
    /// The objects that kustomize makes.
    pub(crate) fn by_kustomize(&self) -> Result<Vec<Value>> {
        let place = place().join("kustomize");
        let mut objects = kustomize::render(&place.join(self.overlay.unwrap_or("base")))?;
        for component in self.components {
            kustomize::build(&place.join("components").join(component), &mut objects)?;
        }
        Ok(objects)
    }

    /// The objects that the chart makes.
    pub(crate) fn by_chart(&self) -> Result<Vec<Value>> {
        chart::render(self.values)
    }
}

/// `deploy/`.
pub(crate) fn place() -> PathBuf {
    sh::root().join("deploy")
}

/// A file as text.
pub(crate) fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The documents of a YAML text; empty ones are left out.
pub(crate) fn documents(text: &str, from: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    let values: Result<Vec<Value>, _> = documents.map(Value::deserialize).collect();
    let values = values.with_context(|| format!("{from} is not YAML"))?;
    Ok(values.into_iter().filter(|value| !value.is_null()).collect())
}

/// Kind and name of an object.
pub(crate) fn called(object: &Value) -> String {
    let word = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    format!("{}/{}", word("/kind"), word("/metadata/name"))
}

/// deploy/daemonset.yaml: the files of the base in one, with their comments; and the copy of the rules in the chart.
pub(crate) fn generated() -> Result<BTreeMap<PathBuf, Option<String>>> {
    let base = place().join("kustomize/base");
    let mut plain = String::from(
        "# `tracer run` on every node: kubectl apply -f deploy/daemonset.yaml\n\
         # Made of deploy/kustomize/base by `cargo xtask bless`: change it there.\n",
    );
    for (index, file) in kustomize::resources(&base)?.iter().enumerate() {
        plain += if index == 0 { "" } else { "---\n" };
        plain += &text(&base.join(file))?;
    }
    let rules = text(&place().join("alerts/tracer.rules.yaml"))?;
    Ok(BTreeMap::from([
        (place().join("daemonset.yaml"), Some(plain)),
        (place().join("chart/files/tracer.rules.yaml"), Some(rules)),
    ]))
}
