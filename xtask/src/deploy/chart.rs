//! The chart, rendered by a Rust implementation of Go's templates with those of Helm's functions that it uses.
//! Another function, a `.Files` other than `Get`, or a value that values.schema.json forbids is an error.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use gtmpl::{FuncError, Template};
use serde_json::{Map, Number, Value, json};

use super::{documents, place, schema, text};

/// The release that is rendered: both names are the namespace and names of deploy/kustomize.
pub(crate) const RELEASE: &str = "tracer";

/// The objects of the chart with these values set (dotted name, YAML).
pub(crate) fn render(set: &[(&str, &str)]) -> Result<Vec<Value>> {
    let values = values(set)?;
    let mut objects = Vec::new();
    for path in templates(".yaml")? {
        let rendered = file(&path, &values)?;
        objects.extend(documents(&rendered, &path.display().to_string())?);
    }
    Ok(objects)
}

/// What Helm says after an installation.
pub(crate) fn notes(set: &[(&str, &str)]) -> Result<String> {
    file(&dir().join("templates/NOTES.txt"), &values(set)?)
}

/// The values of the chart, some of them set, checked as Helm checks them.
pub(crate) fn values(set: &[(&str, &str)]) -> Result<Value> {
    let mut values: Value = serde_yaml_ng::from_str(&text(&dir().join("values.yaml"))?).context("values.yaml")?;
    for (name, value) in set {
        let pointer = format!("/{}", name.replace('.', "/"));
        let place = values.pointer_mut(&pointer).with_context(|| format!("values.yaml has no {name}"))?;
        *place = serde_yaml_ng::from_str(value).with_context(|| format!("{name}={value}"))?;
    }
    let schema: Value =
        serde_json::from_str(&text(&dir().join("values.schema.json"))?).context("values.schema.json")?;
    let faults = schema::faults(&schema, &schema, &values, "values");
    if !faults.is_empty() {
        bail!("against values.schema.json:\n  {}", faults.join("\n  "));
    }
    Ok(values)
}

fn dir() -> PathBuf {
    place().join("chart")
}

fn templates(ending: &str) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(dir().join("templates")).context("deploy/chart/templates")?;
    let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    Ok(paths)
}

fn file(path: &Path, values: &Value) -> Result<String> {
    let mut template = Template::default();
    for (name, function) in FUNCTIONS {
        template.add_func(name, *function);
    }
    let mut source = String::new();
    for helpers in templates(".tpl")? {
        source += &text(&helpers)?;
    }
    // A method with an argument is not known here: the one that we use is a function.
    source += &text(path)?.replace(".Files.Get ", "filesGet ");
    template.parse(source).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let context = gtmpl::Context::from(go(&data(values)?));
    template.render(&context).map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// What templates see as `.`.
fn data(values: &Value) -> Result<Value> {
    let chart: Value = serde_yaml_ng::from_str(&text(&dir().join("Chart.yaml"))?).context("Chart.yaml")?;
    Ok(json!({
        "Values": values,
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        "Release": {"Name": RELEASE, "Namespace": RELEASE, "Service": "Helm"},
    }))
}

const FUNCTIONS: &[(&str, gtmpl::Func)] = &[
    ("toYaml", to_yaml),
    ("nindent", nindent),
    ("quote", quote),
    ("default", default),
    ("filesGet", files_get),
    ("fail", fail),
    ("contains", contains),
    ("hasPrefix", has_prefix),
];

type Returned = Result<gtmpl::Value, FuncError>;

fn to_yaml(args: &[gtmpl::Value]) -> Returned {
    let [value] = args else { return Err(FuncError::ExactlyXArgs("toYaml".into(), 1)) };
    let yaml = serde_yaml_ng::to_string(&plain(value)).map_err(|error| FuncError::Generic(error.to_string()))?;
    Ok(yaml.trim_end().to_owned().into())
}

fn nindent(args: &[gtmpl::Value]) -> Returned {
    let [gtmpl::Value::Number(count), gtmpl::Value::String(text)] = args else {
        return Err(FuncError::Generic("nindent takes a number and a text".into()));
    };
    let pad = " ".repeat(count.as_u64().unwrap_or_default() as usize);
    Ok(format!("\n{pad}{}", text.replace('\n', &format!("\n{pad}"))).into())
}

fn quote(args: &[gtmpl::Value]) -> Returned {
    let [value] = args else { return Err(FuncError::ExactlyXArgs("quote".into(), 1)) };
    Ok(format!("{:?}", value.to_string()).into())
}

fn default(args: &[gtmpl::Value]) -> Returned {
    let [fallback, value] = args else { return Err(FuncError::ExactlyXArgs("default".into(), 2)) };
    let empty = matches!(plain(value), Value::Null | Value::Bool(false))
        || matches!(value, gtmpl::Value::String(text) if text.is_empty());
    Ok(if empty { fallback.clone() } else { value.clone() })
}

fn files_get(args: &[gtmpl::Value]) -> Returned {
    let [gtmpl::Value::String(path)] = args else { return Err(FuncError::ExactlyXArgs("Files.Get".into(), 1)) };
    let content = fs::read_to_string(dir().join(path));
    Ok(content.map_err(|error| FuncError::Generic(format!("{path}: {error}")))?.into())
}

fn fail(args: &[gtmpl::Value]) -> Returned {
    let [gtmpl::Value::String(why)] = args else { return Err(FuncError::ExactlyXArgs("fail".into(), 1)) };
    Err(FuncError::Generic(why.clone()))
}

fn contains(args: &[gtmpl::Value]) -> Returned {
    two_texts("contains", args).map(|(part, text)| text.contains(part).into())
}

fn has_prefix(args: &[gtmpl::Value]) -> Returned {
    two_texts("hasPrefix", args).map(|(start, text)| text.starts_with(start).into())
}

fn two_texts<'a>(function: &str, args: &'a [gtmpl::Value]) -> Result<(&'a str, &'a str), FuncError> {
    match args {
        [gtmpl::Value::String(first), gtmpl::Value::String(second)] => Ok((first, second)),
        _ => Err(FuncError::Generic(format!("{function} takes two texts"))),
    }
}

/// JSON as the templates' values.
fn go(value: &Value) -> gtmpl::Value {
    match value {
        Value::Null => gtmpl::Value::Nil,
        Value::Bool(truth) => gtmpl::Value::Bool(*truth),
        Value::Number(number) => number.as_i64().map_or_else(|| number.as_f64().unwrap_or_default().into(), Into::into),
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => gtmpl::Value::Array(items.iter().map(go).collect()),
        Value::Object(fields) => {
            let fields: HashMap<_, _> = fields.iter().map(|(name, value)| (name.clone(), go(value))).collect();
            gtmpl::Value::Map(fields)
        }
    }
}

/// And back.
fn plain(value: &gtmpl::Value) -> Value {
    match value {
        gtmpl::Value::Bool(truth) => Value::Bool(*truth),
        gtmpl::Value::String(text) => Value::String(text.clone()),
        gtmpl::Value::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().and_then(Number::from_f64).map_or(Value::Null, Value::Number),
        },
        gtmpl::Value::Array(items) => Value::Array(items.iter().map(plain).collect()),
        gtmpl::Value::Map(fields) | gtmpl::Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect::<Map<_, _>>())
        }
        gtmpl::Value::Function(_) | gtmpl::Value::NoValue | gtmpl::Value::Nil => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_the_schema_forbids_are_refused() {
        assert!(values(&[("metrics.port", "70000")]).is_err());
        assert!(values(&[("metrics.enabled", "\"yes\"")]).is_err());
        assert!(values(&[("image.pullPolicy", "Sometimes")]).is_err());
        assert!(values(&[("metrics.nothing", "1")]).is_err());
        assert!(values(&[("appArmorProfile", "null")]).is_ok());
    }

    #[track_caller]
    fn refused(set: &[(&str, &str)], why: &str) {
        let error = format!("{:#}", render(set).expect_err("a value that does nothing"));
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn values_that_would_do_nothing_are_refused() {
        for (name, value) in [
            ("services", "true"),
            ("watchEvents", "shop"),
            ("explain", "true"),
            ("condition", "true"),
            ("kubelet", "true"),
        ] {
            refused(&[("api.enabled", "false"), (&format!("api.{name}"), value)], &format!("api.{name} does nothing"));
        }
        for name in ["podLabels", "serviceMonitor.enabled", "rules.enabled"] {
            refused(&[(&format!("metrics.{name}"), "true")], "while metrics.enabled is false");
            assert!(render(&[("metrics.enabled", "true"), (&format!("metrics.{name}"), "true")]).is_ok());
        }
    }

    #[test]
    fn an_address_of_ipv6_is_in_brackets() {
        for address in ["'::'", "'fd00::1'", "'127.0.0.1:9469'"] {
            refused(&[("metrics.enabled", "true"), ("metrics.address", address)], "in brackets: [::]");
        }
        for address in ["127.0.0.1", "$(NODE_IP)", "'[$(NODE_IP)]'", "'[::]'"] {
            let set = [("metrics.enabled", "true"), ("metrics.address", address)];
            let text = format!("{:?}", render(&set).expect("a chart"));
            assert!(text.contains(&format!("--metrics-listen={}:9469", address.trim_matches('\''))), "{text}");
        }
    }

    #[test]
    fn a_value_that_is_null_leaves_its_field_out() {
        let objects = render(&[("appArmorProfile", "null"), ("extraArgs", "[--attempts]")]).expect("a chart");
        let daemonset = objects.iter().find(|object| object["kind"] == "DaemonSet").expect("a DaemonSet");
        let container = &daemonset["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["securityContext"]["appArmorProfile"], Value::Null);
        assert_eq!(container["args"].as_array().and_then(|args| args.last()), Some(&json!("--attempts")));
    }

    #[test]
    fn the_notes_say_where_the_records_are() {
        assert!(notes(&[]).expect("notes").contains("kubectl -n tracer logs"));
        assert!(notes(&[("output.file.enabled", "true")]).expect("notes").contains("/var/log/tracer/records.ndjson"));
    }

    #[test]
    fn the_notes_name_the_service_account_that_openshift_asks_about() {
        assert!(notes(&[]).expect("notes").contains("privileged -z tracer -n tracer"));
        assert!(notes(&[("api.enabled", "false")]).expect("notes").contains("privileged -z default -n tracer"));
    }
}
