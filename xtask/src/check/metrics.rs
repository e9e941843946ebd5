//! The alert rules and the dashboard speak of metrics and labels that docs/metrics.md lists, and of causes that have a
//! page; promtool finds no fault in the rules, and their tests pass.

use std::fs;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::deploy::{documents, place, text};
use crate::{sh, tools};

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
    let Some(promtool) = tools::find("usr/bin/promtool", &["prometheus"])? else { return Ok(()) };
    for (action, file) in [("check", "tracer.rules.yaml"), ("test", "tracer.test.yaml")] {
        sh::capture(promtool.command().args([action, "rules"]).arg(place().join("alerts").join(file))).context(file)?;
    }
    Ok(())
}

/// The metrics of the table: name, type, labels, meaning. What stands in brackets behind a label are its values.
fn metrics(page: &str) -> Vec<Metric> {
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        let mut labels: Vec<_> = cells.get(3)?.split('(').map(|part| part.rsplit(')').next().unwrap_or(part)).collect();
        labels = labels.iter().flat_map(|part| part.split('`').skip(1).step_by(2)).collect();
        let owned = |labels: &[&str]| labels.iter().map(ToString::to_string).collect();
        let parts = ["_bucket", "_sum", "_count"].map(|part| (format!("{name}{part}"), owned(&["le"])));
        Some(if cells[2] == "histogram" { parts.to_vec() } else { vec![(name.to_owned(), owned(&labels))] })
    };
    let mut found: Vec<Metric> = page.lines().filter_map(row).flatten().collect();
    // Made by the rules, or by Prometheus for every target.
    found.push(("tracer:verdicts:increase5m".into(), vec!["cause".into()]));
    found.push(("up".into(), Vec::new()));
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
    let mut found = Vec::new();
    for (name, matchers) in selectors(expression) {
        let Some((_, labels)) = metrics.iter().find(|(metric, _)| metric == name) else {
            found.push(format!("there is no metric {name}: {expression}"));
            continue;
        };
        for (label, value) in matchers {
            // Prometheus gives the first two to every series.
            if !["instance", "job"].contains(&label) && !labels.iter().any(|known| known == label) {
                found.push(format!("{name} has no label {label}: {expression}"));
            }
            let causes = value.split('|').filter(|cause| label == "cause" && !cause.starts_with('$'));
            let page = |cause: &str| sh::root().join(format!("docs/causes/{cause}.md"));
            let wrong = causes.filter(|cause| !fs::exists(page(cause)).unwrap_or(false));
            found.extend(wrong.map(|cause| format!("no verdict is called {cause}")));
        }
    }
    found
}

/// A metric's name, and label and value of each of its matchers.
type Selector<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// The selectors of an expression: names that begin as ours do, and `up`.
fn selectors(expression: &str) -> Vec<Selector<'_>> {
    let part_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(begin) = rest.find(part_of_name) {
        rest = &rest[begin..];
        let (name, after) = rest.split_at(rest.find(|c| !part_of_name(c)).unwrap_or(rest.len()));
        rest = after;
        if name == "up" || name.starts_with("tracer_") || name.starts_with("tracer:") {
            let inside = after.strip_prefix('{').and_then(|after| after.split_once('}'));
            found.push((name, inside.map_or_else(Vec::new, |(inside, _)| matchers(inside))));
            rest = inside.map_or(after, |(_, after)| after);
        }
    }
    found
}

/// `a="x",b=~"y"` in pairs.
fn matchers(inside: &str) -> Vec<(&str, &str)> {
    let parts: Vec<_> = inside.split('"').collect();
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| (pair[0].trim_matches(|c: char| ",=~! \n".contains(c)), pair[1])).collect()
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
