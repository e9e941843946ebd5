//! Every fixture, replayed by the binary, gives its golden verdicts to the letter.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracer::record::Label;

/// The story in which nothing is wrong.
const HEALTHY: &str = "healthy";

#[test]
fn every_fixture_replays_to_its_verdicts() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut seen = BTreeSet::new();
    for case in cases(&fixtures) {
        let golden = std::fs::read_to_string(case.join("verdicts.ndjson")).expect("verdicts.ndjson");
        assert_eq!(verdicts(&case), golden.lines().collect::<Vec<_>>(), "{}", case.display());
        // tests/fixtures/LABEL or tests/fixtures/LABEL/PROXY-FAMILY
        let cell = case.strip_prefix(&fixtures).expect("below the fixtures");
        let label = cell.iter().next().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let said = if label == HEALTHY { golden.is_empty() } else { golden.contains(&format!(r#""label":"{label}""#)) };
        assert!(said, "{}", case.display());
        seen.insert(label);
    }
    seen.remove(HEALTHY);
    // It only ever stands in `also`.
    let own = Label::ALL.iter().filter(|label| **label != Label::CpuThrottled);
    let labels: BTreeSet<String> = own.map(|label| label.name().to_owned()).collect();
    assert_eq!(seen, labels, "a fixture for each label (`cargo xtask fixtures` records what is missing)");
}

fn cases(place: &Path) -> Vec<PathBuf> {
    let mut cases = Vec::new();
    for path in std::fs::read_dir(place).expect("tests/fixtures").flatten().map(|entry| entry.path()) {
        if path.join("observations.ndjson").is_file() {
            cases.push(path.clone());
        }
        if path.is_dir() {
            cases.extend(self::cases(&path));
        }
    }
    cases
}

fn verdicts(case: &Path) -> Vec<String> {
    let replay = Command::new(env!("CARGO_BIN_EXE_tracer"))
        .args(["replay", "--output", "ndjson"])
        .arg(case.join("observations.ndjson"))
        .output()
        .expect("the tracer starts");
    let records = String::from_utf8(replay.stdout).expect("records are UTF-8");
    records.lines().filter(|line| line.contains(r#""type":"verdict""#)).map(str::to_owned).collect()
}
