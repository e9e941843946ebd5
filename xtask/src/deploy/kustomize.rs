//! As much of kustomize as `deploy/kustomize` uses: resources, components, JSON patches and `$patch: delete`.
//! What it does not know it refuses.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::{called, documents, text};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    target: Target,
    patch: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    name: String,
}

/// The objects of an overlay.
pub(crate) fn render(dir: &Path) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    build(dir, &mut objects)?;
    Ok(objects)
}

/// The files that a kustomization names as resources.
pub(crate) fn resources(dir: &Path) -> Result<Vec<String>> {
    Ok(read(dir)?.resources)
}

/// Adds the objects of a folder to those that are there, and patches them all.
pub(crate) fn build(dir: &Path, objects: &mut Vec<Value>) -> Result<()> {
    let kustomization = read(dir)?;
    for resource in &kustomization.resources {
        let path = dir.join(resource);
        if path.is_dir() {
            build(&path, objects)?;
        } else {
            objects.extend(documents(&text(&path)?, &path.display().to_string())?);
        }
    }
    for component in &kustomization.components {
        build(&dir.join(component), objects)?;
    }
    for patch in &kustomization.patches {
        apply(patch, objects).with_context(|| format!("a patch in {}", dir.display()))?;
    }
    Ok(())
}

fn read(dir: &Path) -> Result<Kustomization> {
    let path = dir.join("kustomization.yaml");
    serde_yaml_ng::from_str(&text(&path)?).with_context(|| format!("{}: not known here", path.display()))
}

fn apply(patch: &Patch, objects: &mut Vec<Value>) -> Result<()> {
    let wanted = format!("{}/{}", patch.target.kind, patch.target.name);
    let content: Value = serde_yaml_ng::from_str(&patch.patch).with_context(|| format!("for {wanted}: not YAML"))?;
    let Some(index) = objects.iter().position(|object| called(object) == wanted) else {
        bail!("there is no {wanted} to patch");
    };
    if content["$patch"] == "delete" {
        objects.remove(index);
        return Ok(());
    }
    let operations: json_patch::Patch =
        serde_json::from_value(content).with_context(|| format!("for {wanted}: not a JSON patch"))?;
    json_patch::patch(&mut objects[index], &operations).with_context(|| format!("for {wanted}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(patch: &str) -> Result<Vec<Value>> {
        let mut objects = vec![json!({"kind": "A", "metadata": {"name": "x"}, "list": [1]})];
        let target = Target { kind: "A".into(), name: "x".into() };
        apply(&Patch { target, patch: patch.into() }, &mut objects)?;
        Ok(objects)
    }

    #[test]
    fn a_patch_changes_or_deletes_its_target() {
        let added = patched("[{op: add, path: /list/-, value: 2}]").expect("a patch");
        assert_eq!(added[0]["list"], json!([1, 2]));
        assert_eq!(patched("$patch: delete").expect("a patch"), Vec::<Value>::new());
    }

    #[test]
    fn a_patch_that_finds_nothing_is_an_error() {
        assert!(patched("[{op: remove, path: /nothing}]").is_err());
        let target = Target { kind: "B".into(), name: "x".into() };
        assert!(apply(&Patch { target, patch: "[]".into() }, &mut Vec::new()).is_err());
    }
}
