//! The alert rules and the dashboard speak of metrics and labels that docs/metrics.md lists, and of causes that have a
//! page; promtool finds no fault in the rules, and their tests pass.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::deploy::{documents, place, text};
use crate::packages;
use crate::sh::{self, regex};

/// A metric and its labels.
type Metric = (String, Vec<String>);

/// Rules and dashboard.
pub(crate) fn check() -> Result<()> {
    let metrics = metrics(&text(&sh::root().join("docs/metrics.md"))?);
    let dashboard: Value = serde_json::from_str(&text(&place().join("dashboards/tracer.json"))?)?;
    let mut expressions = Vec::new();
    for document in documents(&text(&place().join("alerts/tracer.rules.yaml"))?)?.iter().chain([&dashboard]) {
        collect(document, &mut expressions);
    }
    let mut faults: Vec<String> = expressions.iter().flat_map(|expression| unknown(&metrics, expression)).collect();
    faults.extend((expressions.len() < 20).then(|| format!("only {} expressions were found", expressions.len())));
    faults.extend(dashboard_faults(&dashboard));
    if !faults.is_empty() {
        bail!("deploy/alerts and deploy/dashboards:\n  {}", faults.join("\n  "));
    }
    let Some(promtool) = packages::find("usr/bin/promtool", &["prometheus"])? else { return Ok(()) };
    for (action, file) in [("check", "tracer.rules.yaml"), ("test", "tracer.test.yaml")] {
        sh::capture(promtool.command().args([action, "rules"]).arg(place().join("alerts").join(file))).context(file)?;
    }
    Ok(())
}

/// The metrics of the table: name, type, labels, meaning. What stands in brackets behind a label are its values.
fn metrics(page: &str) -> Vec<Metric> {
    let (brackets, code) = (regex(r"\([^)]*\)"), regex("`([^`]+)`"));
    // Made by the rules, or by Prometheus for every target.
    let mut found: Vec<Metric> =
        vec![("tracer:verdicts:increase5m".into(), vec!["cause".into()]), ("up".into(), vec![])];
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
            // Prometheus gives the first two to every series.
            if !["instance", "job"].contains(&label) && !labels.iter().any(|known| known == label) {
                found.push(format!("{name} has no label {label}: {expression}"));
            }
            let causes = value.split('|').filter(|cause| label == "cause" && !cause.starts_with('$'));
            let page = |cause: &str| sh::root().join(format!("docs/causes/{cause}.md"));
            let wrong = causes.filter(|cause| !page(cause).is_file());
            found.extend(wrong.map(|cause| format!("no verdict is called {cause}")));
        }
    }
    found
}

/// Panels that cannot be shown.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_is_found() {
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
}
