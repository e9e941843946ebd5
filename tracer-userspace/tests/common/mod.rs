//! Runs the binary for the tests of its commands.
#![allow(dead_code, unused_imports, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

pub(crate) mod netns;
pub(crate) mod recorded;
pub(crate) mod root;
pub(crate) mod snapshots;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::pty::{Winsize, openpty};
pub(crate) use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};
use tracer_model::event::{Observation, ObservationKind, Start};
pub(crate) use tracer_testbed::proc::Killed;
pub(crate) use tracer_testing::{PATIENCE, Scratch, soon};

pub(crate) fn tracer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
    command.env_clear().stdin(Stdio::null());
    command
}

/// As gzip compresses it.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn ran(args: &[&str]) -> process::Output {
    tracer().args(args).output().unwrap()
}

/// Runs tracer with `setpriv` as the user `nobody`, who may not read the build directory: the binary is an open file.
pub(crate) fn as_nobody<'a>(setpriv: &'a mut Command, args: &[&str]) -> &'a mut Command {
    let binary = File::open(env!("CARGO_BIN_EXE_tracer")).unwrap();
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "/proc/self/fd/0"]);
    setpriv.args(args).stdin(binary)
}

/// A process with its own name: a copy of `sleep`.
pub(crate) struct NamedProcess {
    pub(crate) child: Killed,
    exe: PathBuf,
}

impl NamedProcess {
    /// `wrapper` starts the program that is its last arguments, in its own process.
    pub(crate) fn start(wrapper: &mut Command, name: &str) -> Self {
        let exe = std::env::temp_dir().join(name);
        std::fs::copy("/bin/sleep", &exe).expect("copy of sleep");
        let child = Killed(wrapper.arg(&exe).arg("300").spawn().expect("a process"));
        let comm = format!("/proc/{}/comm", child.id());
        soon(name, || (std::fs::read_to_string(&comm).ok()?.trim() == name).then_some(()));
        Self { child, exe }
    }
}

impl Drop for NamedProcess {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.exe);
    }
}

/// Sends a signal to a process that this test started.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// A terminal of this width: its master and its slave.
pub(crate) fn terminal(columns: u16) -> (File, File) {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    (pty.master.into(), pty.slave.into())
}

/// All that was written to a terminal, once its last slave is closed.
pub(crate) fn screen(mut master: File) -> String {
    let mut bytes = Vec::new();
    // read() then fails with EIO.
    let _ = master.read_to_end(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A verdict about a pod of the namespace `shop`.
pub(crate) fn verdict(seq: u64, node: &str, pod: &str, cause: &str) -> Value {
    let fix = json!({"text": "Set lo up", "commands": [{"run": "ip link set lo up", "where": "node"}]});
    json!({
        "schema": "tracer/1", "type": "verdict", "time": "2026-01-02T03:04:05.000000000Z", "time_boot_ns": 1,
        "seq": seq, "node_name": node, "subject": "probe", "severity": "error",
        "verdict": {"cause": cause, "outcome": "failure", "confidence": "proven", "summary": format!("why {pod}"),
            "remediation": fix, "evidence": [], "also": [], "lost_events": 0, "missing_hooks": []},
        "k8s": {"namespace": "shop", "pod_name": pod},
    })
}

pub(crate) fn printed(tracer: &mut Child) -> Receiver<Value> {
    let lines = BufReader::new(tracer.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (sender, records) = channel();
    thread::spawn(move || {
        lines.map(|line| serde_json::from_str(&line).unwrap()).try_for_each(|record| sender.send(record))
    });
    records
}

pub(crate) fn next(records: &Receiver<Value>, kind: &str) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let record = records.recv_timeout(until.saturating_duration_since(Instant::now())).expect(kind);
        if record["type"] == kind {
            return record;
        }
    }
}

/// The header of a line that the kubelet logs now.
pub(crate) fn klog_header() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let (s, micros) = (now.as_secs(), now.subsec_micros());
    format!("E1121 {:02}:{:02}:{:02}.{micros:06}    1234 prober.go:111]", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// The lines of JSON that a command printed.
pub(crate) fn records(stdout: &[u8]) -> Vec<Value> {
    text(stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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

/// tracer refuses these arguments as wrong usage, or because of a file that they name.
#[track_caller]
pub(crate) fn refuses(args: &[&str], words: &[&str]) {
    reports_one_line(&ran(args), 2, words);
}

fn observations() -> Vec<Observation> {
    let start = Start {
        version: "0.1.0".into(),
        kernel: "6.12.0".into(),
        node_name: "n1".into(),
        boot_to_wall_ns: 1_700_000_000_000_000_000,
        probers: vec!["kubelet".into()],
        ..Start::default()
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
    recording_of(&observations(), END)
}

pub(crate) fn recording_of(observations: &[Observation], end: &str) -> String {
    let lines: Vec<_> = observations.iter().map(|o| serde_json::to_string(o).unwrap()).collect();
    format!("{HEADER}\n{}\n{end}\n", lines.join("\n"))
}

/// A recording as a file, and a directory for other files.
pub(crate) fn recorded_file() -> (Scratch, String) {
    let dir = Scratch::new();
    let file = dir.file("good", recording());
    (dir, file)
}

pub(crate) fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap().lines().count()
}
