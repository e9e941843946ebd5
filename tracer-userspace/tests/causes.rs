//! The alerts, the runbook and the documentation have the causes of the table in `record/cause.rs`, and no others.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends at the line that failed")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tracer_model::record::{Cause, Scope, Severity};

/// Alerts, and the scopes that raise them. `None`: verdicts that are `unexplained`.
const ALERTS: [(&str, &[Option<Scope>]); 4] = [
    ("TracerNodeNetworkBroken", &[Some(Scope::Node)]),
    ("TracerNodeFault", &[Some(Scope::Network), Some(Scope::Kubelet)]),
    ("TracerProbeFailures", &[Some(Scope::Pod), Some(Scope::Application)]),
    ("TracerUnexplained", &[None]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|it| it.join("deploy").is_dir()).unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn causes_of(scopes: &[Option<Scope>]) -> BTreeSet<Cause> {
    let fails = |cause: &&Cause| cause.severity() != Severity::Info;
    Cause::ALL.iter().filter(fails).filter(|cause| scopes.contains(&cause.scope())).copied().collect()
}

fn assert_same(found: &BTreeSet<Cause>, expected: &BTreeSet<Cause>, place: &str) {
    let [missing, wrong] = [expected - found, found - expected];
    assert!(missing.is_empty() && wrong.is_empty(), "{place}: missing {missing:?}, wrong {wrong:?}");
}

/// The causes that an expression selects: `cause=~"a|b"` or `cause="a"`.
fn selected(expression: &str) -> BTreeSet<Cause> {
    let list = expression.split_once("cause=").unwrap().1.trim_start_matches('~').split('"').nth(1).unwrap();
    list.split('|').map(|name| Cause::from_name(name).unwrap_or_else(|| panic!("no cause: {name}"))).collect()
}

#[test]
fn each_alert_selects_the_causes_of_its_scopes() {
    let rules: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read("deploy/alerts/tracer.rules.yaml")).unwrap();
    let rules: Vec<_> =
        rules["groups"].as_sequence().unwrap().iter().flat_map(|it| it["rules"].as_sequence()).flatten().collect();
    for (name, scopes) in ALERTS {
        let rule = rules.iter().find(|rule| rule["alert"].as_str() == Some(name)).unwrap();
        assert_same(
            &selected(rule["expr"].as_str().unwrap()),
            &causes_of(scopes),
            &format!("the expression of {name}"),
        );
    }
}

#[test]
fn the_runbook_has_the_causes_of_each_alert() {
    let runbook = read("docs/runbook.md");
    for (name, scopes) in ALERTS.iter().filter(|(name, _)| *name != "TracerUnexplained") {
        let section = runbook.split("\n## ").find(|it| it.starts_with(name)).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let named = rows.flat_map(|cell| cell.split('`')).filter_map(Cause::from_name).collect::<BTreeSet<_>>();
        assert_same(&named, &causes_of(scopes), &format!("the rows below {name} in docs/runbook.md"));
    }
}

#[test]
fn the_documentation_lists_every_cause_in_the_order_of_decision() {
    let names: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
    let summary = read("docs/SUMMARY.md");
    let listed: Vec<_> =
        summary.lines().filter_map(|line| line.split("(causes/").nth(1)?.strip_suffix(".md)")).collect();
    assert_eq!(listed.strip_prefix(&["README"]), Some(names.as_slice()), "run `cargo xtask bless`");

    let pages = std::fs::read_dir(root().join("docs/causes")).unwrap().map(|it| it.unwrap().path());
    let pages: BTreeSet<_> = pages.map(|it| it.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(pages, names.into_iter().chain(["README"]).map(str::to_owned).collect());
}
