//! The alert rules and the dashboard speak of metrics that the tracer has, with labels that these have, and of causes
//! that it names; promtool finds no fault in the rules, and their tests pass.

use std::fs;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::deploy::{documents, place, text};
use crate::{sh, tools};

/// The metrics of `tracer run` and their labels: names that once released are never reused.
const METRICS: &[(&str, &[&str])] = &[
    ("tracer_verdicts_total", &["label", "subject", "probe_type", "handler", "confidence"]),
    ("tracer_attempts_total", &["outcome", "probe_type", "handler"]),
    ("tracer_events_total", &["hook"]),
    ("tracer_events_lost_total", &["where"]),
    ("tracer_kernel_read_failures_total", &[]),
    ("tracer_hook_attached", &["hook"]),
    ("tracer_verdict_latency_seconds_bucket", &["le"]),
    ("tracer_verdict_latency_seconds_sum", &[]),
    ("tracer_verdict_latency_seconds_count", &[]),
    ("tracer_program_run_seconds_total", &["hook"]),
    ("tracer_program_runs_total", &["hook"]),
    ("tracer_sink_dropped_total", &["sink"]),
    ("tracer_doctor_finding", &["check", "status"]),
    ("tracer_build_info", &["version"]),
    // Made by the rules, or by Prometheus for every target.
    ("tracer:verdicts:increase5m", &["label"]),
    ("up", &[]),
];

/// Labels that every series has.
const OF_TARGETS: &[&str] = &["instance", "job"];

/// Rules and dashboard.
pub(crate) fn check() -> Result<()> {
    let mut faults: Vec<String> = expressions()?.iter().flat_map(|expression| unknown(expression)).collect();
    faults.extend(dashboard_faults(&dashboard()?));
    if !faults.is_empty() {
        bail!("deploy/alerts and deploy/dashboards:\n  {}", faults.join("\n  "));
    }
    let Some(promtool) = tools::find("usr/bin/promtool", &["prometheus"])? else { return Ok(()) };
    let alerts = place().join("alerts");
    sh::capture(promtool.command().args(["check", "rules"]).arg(alerts.join("tracer.rules.yaml")))?;
    sh::capture(promtool.command().args(["test", "rules"]).arg(alerts.join("tracer.test.yaml")))
        .context("the rules do not do what tracer.test.yaml says")?;
    Ok(())
}

/// Everything in PromQL.
fn expressions() -> Result<Vec<String>> {
    let rules = documents(&text(&place().join("alerts/tracer.rules.yaml"))?, "the rules")?;
    let mut found = Vec::new();
    rules.iter().for_each(|rules| collect(rules, "expr", &mut found));
    collect(&dashboard()?, "expr", &mut found);
    collect(&dashboard()?, "definition", &mut found);
    if found.len() < 20 {
        bail!("only {} expressions were found in the rules and the dashboard", found.len());
    }
    Ok(found)
}

fn dashboard() -> Result<Value> {
    serde_json::from_str(&text(&place().join("dashboards/tracer.json"))?).context("deploy/dashboards/tracer.json")
}

/// All texts in fields of that name, at any depth.
fn collect(value: &Value, field: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(field).and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| collect(value, field, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, field, found)),
        _ => {}
    }
}

/// Metrics, labels and causes in an expression that there are not.
fn unknown(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, matchers) in selectors(expression) {
        let Some((_, labels)) = METRICS.iter().find(|(metric, _)| *metric == name) else {
            found.push(format!("there is no metric {name}: {expression}"));
            continue;
        };
        for (label, value) in matchers {
            if !labels.contains(&label) && !OF_TARGETS.contains(&label) {
                found.push(format!("{name} has no label {label}: {expression}"));
            }
            let causes = value.split('|').filter(|cause| label == "label" && !cause.starts_with('$'));
            found.extend(causes.filter(|cause| !is_cause(cause)).map(|cause| format!("no verdict is called {cause}")));
        }
    }
    found
}

fn is_cause(name: &str) -> bool {
    fs::exists(sh::root().join(format!("docs/labels/{name}.md"))).unwrap_or(false)
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
    let mut parts = inside.split('"');
    let mut found = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        found.push((name.trim_matches(|c: char| ",=~! \n".contains(c)), value));
    }
    found
}

/// Panels that cannot be shown.
fn dashboard_faults(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().map_or(&[][..], Vec::as_slice);
    let mut found = Vec::new();
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    ids.sort_unstable();
    ids.dedup();
    found.extend((ids.len() != panels.len() || panels.is_empty()).then(|| "panels share their id".to_owned()));
    for panel in panels {
        let shown = ["title", "type", "gridPos", "targets"].iter().all(|field| !panel[*field].is_null());
        found.extend((!shown).then(|| format!("panel {} lacks a title, type, place or target", panel["id"])));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read_with_their_matchers() {
        let found =
            selectors("sum by (label) (rate(tracer_a{x=~\"1|2\", y!=\"3\"}[5m])) / tracer_b > on() up{job=\"t\"}");
        let expected =
            vec![("tracer_a", vec![("x", "1|2"), ("y", "3")]), ("tracer_b", Vec::new()), ("up", vec![("job", "t")])];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_there_is_not_is_found() {
        assert_eq!(unknown("rate(tracer_verdicts_total{label=\"loopback_down\"}[5m])"), Vec::<String>::new());
        assert_eq!(unknown("tracer_verdict_total").len(), 1);
        assert_eq!(unknown("tracer_events_lost_total{hook=\"x\"}").len(), 1);
        assert_eq!(unknown("tracer_verdicts_total{label=~\"loopback_down|loopback_up\"}").len(), 1);
    }

    #[test]
    fn a_dashboard_without_a_target_is_refused() {
        let panel = serde_json::json!({"panels": [{"id": 1, "title": "x", "type": "stat", "gridPos": {}}]});
        assert_eq!(dashboard_faults(&panel).len(), 1);
        assert_eq!(dashboard_faults(&Value::Null).len(), 1);
    }
}
