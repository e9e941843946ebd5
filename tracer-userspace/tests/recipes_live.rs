//! The recipes for log pipelines (`deploy/recipes`). rsyslog runs with its recipe over real records and a rotation.
//! The other recipes are only parsed, as their READMEs say. Needs root and the packages (`cargo xtask setup`).
//!
//! Run with `cargo test -p tracer-userspace --test recipes_live -- --include-ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

mod common;

use common::netns::Netns;
use common::recorded::{fixtures, parsed};
use common::root::Root;
use common::soon;

/// A line that is not a record.
const CUT: &str = "{\"cut\":";

/// A stored field and where it is in the record.
const FIELDS: &[(&str, &str)] = &[
    ("time", "/time"),
    ("node", "/node_name"),
    ("cause", "/verdict/cause"),
    ("outcome", "/verdict/outcome"),
    ("confidence", "/verdict/confidence"),
    ("namespace", "/k8s/namespace"),
    ("pod", "/k8s/pod_name"),
    ("container", "/k8s/container_name"),
    ("probe", "/probe/type"),
    ("dst", "/dst/addr"),
    ("port", "/dst/port"),
    ("summary", "/verdict/summary"),
    ("remediation", "/verdict/remediation/text"),
];

fn recipe(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/recipes").join(file)).unwrap()
}

#[test]
fn the_other_recipes_are_valid_yaml() {
    for file in ["fluent-bit/fluent-bit.yaml", "vector/vector.yaml"] {
        serde_yaml_ng::from_str::<Value>(&recipe(file)).expect(file);
    }
}

#[test]
#[ignore = "needs root"]
fn rsyslog_stores_each_verdict_over_a_rotation() {
    let node = Netns::new();
    let Some(root) = Root::with_packages(&node) else { return };
    let [input, rotated, verdicts, unparsed] =
        ["tracer/records.ndjson", "tracer/records.ndjson.1", "tracer-verdicts.log", "tracer-unparsed.log"]
            .map(|file| root.path("var/log").join(file));
    // Hides the logs of this machine.
    root.run("mount -t tmpfs tmpfs /var/log; mkdir /var/log/tracer");
    fs::write(root.path("tmp/tracer.conf"), recipe("rsyslog/tracer.conf")).unwrap();
    let configuration = "global(workDirectory=\"/tmp\")\ninclude(file=\"/tmp/tracer.conf\")\n";
    fs::write(root.path("tmp/rsyslog.conf"), configuration).unwrap();
    root.run("rsyslogd -f /tmp/rsyslog.conf -N1");

    let records: Vec<String> = fixtures().iter().flat_map(common::recorded::Recording::records).collect();
    let records: Vec<&String> = records.iter().filter(|record| parsed(record)["type"] == "verdict").collect();
    assert!(records.len() >= 10, "{} verdicts", records.len());
    let lines: Vec<String> = records.iter().map(|record| format!("{record}\n")).collect();
    let (old, new) = lines.split_at(lines.len() / 2);
    fs::write(&input, format!("{}{{\"type\":\"start\"}}\n{CUT}\n", old.concat())).unwrap();
    let mut daemon = root.spawn("exec rsyslogd -n -iNONE -f /tmp/rsyslog.conf");
    soon("the first half", || stored(&verdicts, old.len()));
    fs::rename(&input, rotated).unwrap();
    fs::write(&input, new.concat()).unwrap();
    let stored = soon("the second half", || stored(&verdicts, records.len()));
    let rest = fs::read_to_string(unparsed).unwrap();
    drop(root);
    daemon.wait().unwrap();

    assert_eq!(stored.len(), records.len());
    for (record, stored) in records.iter().map(|record| parsed(record)).zip(stored) {
        for (field, pointer) in FIELDS {
            assert_eq!(stored.get(field), record.pointer(pointer), "{field} of {record}");
        }
    }
    assert_eq!(rest.trim(), CUT);
}

/// The verdicts of a file, if it has at least `count`.
fn stored(file: &PathBuf, count: usize) -> Option<Vec<Value>> {
    let text = fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))?;
    (text.lines().count() >= count).then(|| text.lines().map(parsed).collect())
}
