//! Every fixture, replayed by the binary, gives its golden verdicts to the letter.

use std::path::Path;
use std::process::Command;

#[test]
fn every_fixture_replays_to_its_verdicts() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut seen = 0;
    for case in std::fs::read_dir(fixtures).expect("tests/fixtures").flatten().map(|entry| entry.path()) {
        if !case.is_dir() {
            continue;
        }
        let replay = Command::new(env!("CARGO_BIN_EXE_tracer"))
            .args(["replay", "--output", "ndjson"])
            .arg(case.join("observations.ndjson"))
            .output()
            .expect("the tracer starts");
        let records = String::from_utf8(replay.stdout).expect("records are UTF-8");
        let verdicts: Vec<&str> = records.lines().filter(|line| line.contains(r#""type":"verdict""#)).collect();
        let golden = std::fs::read_to_string(case.join("verdicts.ndjson")).expect("verdicts.ndjson");
        assert_eq!(verdicts, golden.lines().collect::<Vec<_>>(), "{}", case.display());
        let label = case.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        assert!(golden.contains(&format!(r#""label":"{label}""#)), "{}", case.display());
        seen += 1;
    }
    assert_eq!(seen, tracer::classify::label::Label::ALL.len(), "a fixture for each label");
}
