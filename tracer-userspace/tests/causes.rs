//! The documentation has a page for each cause of the table in `record/cause.rs`, and no others.
#![expect(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tracer_model::record::Cause;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|it| it.join("deploy").is_dir()).unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
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
