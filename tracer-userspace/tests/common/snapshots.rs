//! Texts in snapshot files. A test fails if a text changes. `INSTA_UPDATE=always` updates the files instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// Compares each text with `tests/snapshots/FOLDER/NAME.snap`, where `__` replaces a `/` in the name. The folder must
/// have no other snapshots.
#[track_caller]
pub(crate) fn compare(folder: &str, texts: &BTreeMap<String, String>) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(folder);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(&place);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let differs =
        |(name, text): &(&String, &String)| catch_unwind(|| insta::assert_snapshot!(name.as_str(), text)).is_err();
    let changed: Vec<&String> = settings.bind(|| texts.iter().filter(differs).map(|(name, _)| name).collect());
    assert!(changed.is_empty(), "{} of {} in {folder} changed: {changed:?}", changed.len(), texts.len());
    let files = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let known: BTreeSet<String> = texts.keys().map(|name| format!("{}.snap", name.replace('/', "__"))).collect();
    let left: Vec<String> = files.filter(|file| file.ends_with(".snap") && !known.contains(file)).collect();
    assert!(left.is_empty(), "remove from {}: {left:?}", place.display());
}
