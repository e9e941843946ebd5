//! JSON Schema, as much of it as Kubernetes' definitions and the chart's values use. A keyword that is not known is a
//! fault, so that nothing passes because it was not understood.
//!
//! `deploy/schemas/kubernetes-1.36.json` names its source; a general validator would bring some fifty crates along.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{called, place, text};

/// The definitions of Kubernetes that our manifests need.
pub(crate) struct Kubernetes {
    root: Value,
}

impl Kubernetes {
    /// Reads them.
    pub(crate) fn read() -> Result<Self> {
        let path = place().join("schemas/kubernetes-1.36.json");
        let root = serde_json::from_str(&text(&path)?).with_context(|| path.display().to_string())?;
        Ok(Self { root })
    }

    /// What is wrong with an object; `None`: there is no definition of its kind.
    pub(crate) fn faults(&self, object: &Value) -> Option<Vec<String>> {
        let definitions = self.root["$defs"].as_object()?;
        let is = |schema: &Value, field: &str| {
            let names = schema["properties"][field]["enum"].as_array();
            names.is_some_and(|names| names.contains(&object[field]))
        };
        let schema = definitions.values().find(|schema| is(schema, "kind") && is(schema, "apiVersion"))?;
        Some(faults(&self.root, schema, object, &called(object)))
    }
}

/// What of `value` is against `schema`, whose references lead into `root`; `place` is its name in the messages.
pub(crate) fn faults(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let Some(keywords) = schema.as_object() else { return vec![format!("{place}: the schema is no object")] };
    let mut found = Vec::new();
    for (keyword, rule) in keywords {
        match keyword.as_str() {
            "$ref" => found.extend(reference(root, rule, value, place)),
            "properties" => found.extend(properties(root, rule, value, place)),
            "additionalProperties" => found.extend(additional(root, schema, rule, value, place)),
            "items" => found.extend(items(root, rule, value, place)),
            "oneOf" => found.extend(one_of(root, rule, value, place)),
            "required" => found.extend(required(rule, value, place)),
            "type" | "enum" | "minimum" | "maximum" | "minLength" => {
                let ok = holds(keyword, rule, value);
                found.extend((!ok).then(|| format!("{place}: {value} is against {keyword} {rule}")));
            }
            "$schema" | "$comment" | "$defs" | "title" | "description" | "format" | "default" => {}
            other => found.push(format!("{place}: the keyword {other} of the schema is not known here")),
        }
    }
    found
}

fn reference(root: &Value, name: &Value, value: &Value, place: &str) -> Vec<String> {
    let pointer = name.as_str().and_then(|name| name.strip_prefix('#'));
    match pointer.and_then(|pointer| root.pointer(pointer)) {
        Some(schema) => faults(root, schema, value, place),
        None => vec![format!("{place}: the schema has no {name}")],
    }
}

fn properties(root: &Value, rule: &Value, value: &Value, place: &str) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    let known = fields.filter_map(|(name, value)| Some((name, value, rule.get(name)?)));
    known.flat_map(|(name, value, schema)| faults(root, schema, value, &format!("{place}.{name}"))).collect()
}

fn additional(root: &Value, schema: &Value, rule: &Value, value: &Value, place: &str) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    let others = fields.filter(|(name, _)| schema["properties"].get(name.as_str()).is_none());
    others
        .flat_map(|(name, value)| match rule {
            Value::Bool(true) => Vec::new(),
            Value::Bool(false) => vec![format!("{place}: there is no field {name}")],
            rule => faults(root, rule, value, &format!("{place}.{name}")),
        })
        .collect()
}

fn items(root: &Value, rule: &Value, value: &Value, place: &str) -> Vec<String> {
    let items = value.as_array().into_iter().flatten().enumerate();
    items.flat_map(|(index, item)| faults(root, rule, item, &format!("{place}[{index}]"))).collect()
}

fn one_of(root: &Value, rule: &Value, value: &Value, place: &str) -> Option<String> {
    let schemas = rule.as_array().into_iter().flatten();
    let fitting = schemas.filter(|schema| faults(root, schema, value, place).is_empty()).count();
    (fitting != 1).then(|| format!("{place}: {value} fits {fitting} of {rule}"))
}

fn required(rule: &Value, value: &Value, place: &str) -> Vec<String> {
    let Some(fields) = value.as_object() else { return Vec::new() };
    let names = rule.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter(|name| !fields.contains_key(*name)).map(|name| format!("{place}: {name} is missing")).collect()
}

/// The keywords that look at a value alone.
fn holds(keyword: &str, rule: &Value, value: &Value) -> bool {
    match keyword {
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is_a(name, value)),
            name => is_a(name, value),
        },
        "enum" => rule.as_array().is_some_and(|values| values.contains(value)),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().unwrap_or(0)),
        "minimum" => value.as_f64().is_none_or(|number| rule.as_f64().is_some_and(|least| number >= least)),
        _ => value.as_f64().is_none_or(|number| rule.as_f64().is_some_and(|most| number <= most)),
    }
}

fn is_a(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"},
            "spec": {"ports": [{"port": 1, "targetPort": "http"}]},
        });
        change(&mut object);
        Kubernetes::read().expect("the definitions").faults(&object).unwrap_or_else(|| vec!["unknown kind".into()])
    }

    #[test]
    fn faults_are_found_where_they_are() {
        assert_eq!(wrong(|_| ()), Vec::<String>::new());
        assert_eq!(wrong(|object| object["spec"]["port"] = json!([])), ["Service/x.spec: there is no field port"]);
        assert_eq!(wrong(|object| object["spec"]["ports"] = json!([{}])), ["Service/x.spec.ports[0]: port is missing"]);
        assert_eq!(wrong(|object| object["spec"]["ports"][0]["port"] = json!("1")).len(), 1);
        assert_eq!(wrong(|object| object["spec"]["ports"][0]["targetPort"] = json!([1])).len(), 1);
        assert_eq!(wrong(|object| object["kind"] = json!("Servic")), ["unknown kind"]);
    }

    #[test]
    fn an_unknown_keyword_does_not_pass() {
        let schema = json!({"pattern": "x"});
        assert_eq!(faults(&schema, &schema, &json!("y"), "it").len(), 1);
    }
}
