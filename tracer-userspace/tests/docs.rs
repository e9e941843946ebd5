//! The documentation lists what there is, and nothing else: causes, values of the chart. The alert rules and the dashboard
//! use only metrics and labels of docs/metrics.md, and causes that have a page. `cargo xtask check alerts` checks the rules
//! with promtool.
#![expect(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;
use serde::Deserialize as _;
use serde_json::Value;
use tracer_model::record::Cause;

/// A metric and its labels.
type Metric = (String, Vec<String>);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

fn regex(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

#[test]
fn rules_and_dashboard_use_only_known_names() {
    let metrics = metrics(&text("docs/metrics.md"));
    let dashboard: Value = serde_json::from_str(&text("deploy/dashboards/tracer.json")).unwrap();
    let rules = text("deploy/alerts/tracer.rules.yaml");
    let mut expressions = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(&rules) {
        collect(&Value::deserialize(document).unwrap(), &mut expressions);
    }
    collect(&dashboard, &mut expressions);
    assert!(expressions.len() >= 20, "only {} expressions were found", expressions.len());
    let faults: Vec<String> = expressions.iter().flat_map(|expression| unknown(&metrics, expression)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(dashboard_faults(&dashboard), Vec::<String>::new());
}

/// The metrics of the table: name, type, labels, meaning. Values of a label are in brackets.
fn metrics(page: &str) -> Vec<Metric> {
    let (brackets, code) = (regex(r"\([^)]*\)"), regex("`([^`]+)`"));
    // The rules make the first one, and Prometheus makes `up` for every target.
    let mut found: Vec<Metric> =
        vec![("tracer:verdicts:increase5m".into(), vec!["cause".into(), "confidence".into()]), ("up".into(), vec![])];
    for row in regex(r"(?m)^\| *`(\w+)` *\| *(\w+) *\|([^|]*)\|").captures_iter(page) {
        if &row[2] == "histogram" {
            found.extend(["_bucket", "_sum", "_count"].map(|part| (row[1].to_owned() + part, vec!["le".into()])));
        } else {
            let labels = brackets.replace_all(&row[3], "");
            found.push((row[1].to_owned(), code.captures_iter(&labels).map(|label| label[1].to_owned()).collect()));
        }
    }
    found
}

/// All PromQL in a document.
fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found
                .extend(["expr", "definition"].iter().filter_map(|field| fields.get(*field)?.as_str().map(Into::into)));
            fields.values().for_each(|value| collect(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, found)),
        _ => {}
    }
}

/// Metrics, labels and causes in an expression that do not exist.
fn unknown(metrics: &[Metric], expression: &str) -> Vec<String> {
    let matchers = regex(r#"(\w+)\s*[=!~]+\s*"([^"]*)""#);
    let mut found = Vec::new();
    for selector in regex(r"\b(up\b|tracer[_:][\w:]*)(?:\{([^}]*)\})?").captures_iter(expression) {
        let name = &selector[1];
        let Some((_, labels)) = metrics.iter().find(|(metric, _)| metric == name) else {
            found.push(format!("there is no metric {name}: {expression}"));
            continue;
        };
        for matcher in matchers.captures_iter(selector.get(2).map_or("", |inside| inside.as_str())) {
            let (label, value) = (&matcher[1], &matcher[2]);
            // Prometheus adds these two labels to every series.
            if !["instance", "job"].contains(&label) && !labels.iter().any(|known| known == label) {
                found.push(format!("{name} has no label {label}: {expression}"));
            }
            let causes = value.split('|').filter(|cause| label == "cause" && !cause.starts_with('$'));
            let page = |cause: &str| root().join(format!("docs/causes/{cause}.md"));
            let wrong = causes.filter(|cause| !page(cause).is_file());
            found.extend(wrong.map(|cause| format!("no verdict is called {cause}")));
        }
    }
    found
}

/// Reasons why Grafana could not show a panel.
fn dashboard_faults(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().map_or(&[][..], Vec::as_slice);
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut found = Vec::new();
    found.extend((ids.len() != panels.len() || panels.is_empty()).then(|| "panels share their id".to_owned()));
    let lacks = |panel: &&Value| ["title", "type", "gridPos", "targets"].iter().any(|field| panel[*field].is_null());
    let faulty = panels.iter().filter(lacks);
    found.extend(faulty.map(|panel| format!("panel {} lacks a title, type, place or target", panel["id"])));
    found
}

#[test]
fn an_unknown_metric_label_or_cause_is_found() {
    let metrics = metrics("| name | type | labels |\n| `tracer_a` | counter | `cause`, `x` (`1`, `2`), `y` | a |");
    let unknown = |expression| unknown(&metrics, expression).len();
    assert_eq!(unknown("sum by (z) (rate(tracer_a{x=~\"1|2\", y!=\"3\"}[5m])) > on() up{job=\"t\"}"), 0);
    assert_eq!(unknown("tracer_a{cause=\"loopback_down\"} / tracer_b"), 1);
    assert_eq!(unknown("tracer_a{z=\"1\"} + tracer_a{y=\"1\", cause=~\"loopback_down|loopback_up\"}"), 2);
}

#[test]
fn a_dashboard_without_a_target_is_refused() {
    let panel = serde_json::json!({"panels": [{"id": 1, "title": "x", "type": "stat", "gridPos": {}}]});
    assert_eq!(dashboard_faults(&panel).len(), 1);
    assert_eq!(dashboard_faults(&Value::Null).len(), 1);
}

#[test]
fn the_documentation_lists_every_cause_in_the_order_of_decision() {
    let names: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
    let summary = text("docs/SUMMARY.md");
    let listed: Vec<_> =
        summary.lines().filter_map(|line| line.split("(causes/").nth(1)?.strip_suffix(".md)")).collect();
    assert_eq!(listed.strip_prefix(&["README"]), Some(names.as_slice()), "run `cargo xtask bless`");

    let pages = fs::read_dir(root().join("docs/causes")).unwrap().map(|it| it.unwrap().path());
    let pages: BTreeSet<_> = pages.map(|it| it.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(pages, names.into_iter().chain(["README"]).map(str::to_owned).collect());
}

/// Values that the templates pass to Kubernetes unchanged, so their fields are not listed.
const WHOLE: [&str; 7] = [
    "resources",
    "nodeSelector",
    "tolerations",
    "updateStrategy",
    "appArmorProfile",
    "seLinuxOptions",
    "metrics.dashboard.labels",
];

fn names(prefix: &str, value: &Value) -> Vec<String> {
    match value.as_object().filter(|fields| !fields.is_empty() && !WHOLE.contains(&prefix)) {
        None => vec![prefix.to_owned()],
        Some(fields) => {
            let name = |key: &str| [prefix, key].join(if prefix.is_empty() { "" } else { "." });
            fields.iter().flat_map(|(key, value)| names(&name(key), value)).collect()
        }
    }
}

#[test]
fn the_readme_of_the_chart_lists_each_value_and_no_others() {
    let values: BTreeSet<String> =
        names("", &serde_yaml_ng::from_str(&text("deploy/chart/values.yaml")).unwrap()).into_iter().collect();
    let readme = text("deploy/chart/README.md");
    let listed = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), values);
}
