//! The table in the chart's README lists each value of the chart, and no others.
#![expect(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_yaml_ng::Value;

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

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart").join(file)).unwrap()
}

fn names(prefix: &str, value: &Value) -> Vec<String> {
    match value.as_mapping().filter(|fields| !fields.is_empty() && !WHOLE.contains(&prefix)) {
        None => vec![prefix.to_owned()],
        Some(fields) => {
            let name = |key: &Value| [prefix, key.as_str().unwrap()].join(if prefix.is_empty() { "" } else { "." });
            fields.iter().flat_map(|(key, value)| names(&name(key), value)).collect()
        }
    }
}

#[test]
fn the_table_lists_each_value_and_no_others() {
    let values: BTreeSet<String> =
        names("", &serde_yaml_ng::from_str(&read("values.yaml")).unwrap()).into_iter().collect();
    let readme = read("README.md");
    let listed = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), values);
}
