//! Runs the binary for the tests of its commands.
#![allow(dead_code, unused_imports, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

pub(crate) mod netns;
pub(crate) mod recorded;
pub(crate) mod root;
pub(crate) mod snapshots;

use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tracer_model::event::{Observation, ObservationKind, Start};
pub(crate) use tracer_testing::{PATIENCE, soon};

/// A directory that is removed when the test ends.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn tracer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
    command.env_clear().stdin(Stdio::null());
    command
}

pub(crate) fn ran(args: &[&str]) -> process::Output {
    tracer().args(args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The command ended with this exit code, and exactly one line on stderr that contains these words.
#[track_caller]
pub(crate) fn reports_one_line(output: &process::Output, code: i32, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("tracer: ") && stderr.ends_with('\n'), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr}");
    }
}

pub(crate) fn observations() -> Vec<Observation> {
    let start = Start {
        version: "0.1.0".into(),
        kernel: "6.12.0".into(),
        node_name: "n1".into(),
        boot_to_wall_ns: 1_700_000_000_000_000_000,
        node_netns: None,
        namespaces: Vec::new(),
        namespaces_incomplete: false,
        asks_for_endpoints: false,
        probers: vec!["kubelet".into()],
        all_connections: false,
        hooks: vec![],
        missing_hooks: vec![],
        prober_hooks: None,
        sources: vec![],
    };
    vec![
        Observation { time_boot_ns: 1_000_000_000, kind: ObservationKind::Start(Box::new(start)) },
        Observation { time_boot_ns: 2_000_000_000, kind: ObservationKind::Tick },
    ]
}

pub(crate) const HEADER: &str =
    r#"{"format":"tracer-record","version":1,"tracer":"0.1.0","prober_pids":[812],"pods":3}"#;
pub(crate) const END: &str = r#"{"end":true,"observations":2,"time_boot_ns":3000000000}"#;

/// A recording: header, start, a tick, end.
pub(crate) fn recording() -> String {
    let lines: Vec<_> = observations().iter().map(|o| serde_json::to_string(o).unwrap()).collect();
    format!("{HEADER}\n{}\n{END}\n", lines.join("\n"))
}

pub(crate) fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap().lines().count()
}
