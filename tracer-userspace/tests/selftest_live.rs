//! `tracer selftest` on this kernel: its rows, its exit codes, and that it leaves nothing behind. Needs root.
//!
//! Run with `cargo test -p tracer-userspace --test selftest_live -- --ignored`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

mod common;

use common::{Signal, as_nobody, records, reports_one_line};

/// How long a killed tracer may need to detach on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn selftest(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
    command.args(["selftest", "-o", "json"]).args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A selftest that has printed one row, and is working on the next one.
struct RunningSelftest {
    child: Child,
    /// A variable in the environment of all its processes.
    mark: String,
    /// Its processes after the first row.
    pids: Vec<u32>,
}

impl RunningSelftest {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("SELFTEST_LIVE={}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (name, value) = mark.split_once('=').expect("a variable");
        let mut command = selftest(&["--cause", "app_status_failure,startup_budget_exceeded"]);
        let mut child = command.env(name, value).spawn().expect("tracer");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("stdout")).read_line(&mut line).expect("a row");
        assert!(line.contains("selftest/"), "{line}");
        let pids = marked(&mark);
        assert!(pids.len() > 3, "parent, child, prober, tracer: {pids:?}");
        Self { child, mark, pids }
    }

    fn signal(&self, signal: Signal) {
        common::signal(&self.child, signal);
    }

    /// Waits for its end, and for the end of the processes that it started.
    fn ended(&mut self) -> ExitStatus {
        let mut reported = String::new();
        self.child.stderr.take().expect("stderr").read_to_string(&mut reported).expect("stderr");
        let begin = Instant::now();
        while marked(&self.mark).iter().any(|pid| *pid != self.child.id()) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.wait().expect("its end")
    }

    /// Its processes, mounts and files that still exist.
    fn left(&self) -> Vec<String> {
        let processes = marked(&self.mark).into_iter().map(|pid| format!("process {pid}"));
        let places = ["/run", "/run/netns", "/tmp"].into_iter().flat_map(entries).filter(|name| self.is_mine(name));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mounts: Vec<String> = mounts.lines().filter(|line| line.contains("trw-")).map(str::to_owned).collect();
        processes.chain(places).chain(mounts.into_iter().filter(|line| self.is_mine(line))).collect()
    }

    /// Its cgroups that still exist.
    fn groups(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let roots = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
        roots.flat_map(entries).filter(|name| self.is_mine(name)).collect()
    }

    fn is_mine(&self, name: &str) -> bool {
        name.contains("tracer-selftest") || self.pids.iter().any(|pid| name.contains(&format!("trw-{pid}-")))
    }
}

/// The processes with this variable in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|it| it.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
    };
    entries("/proc").iter().filter_map(|name| name.parse().ok()).filter(has).collect()
}

fn entries(dir: &str) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn row<'a>(rows: &'a [Value], cause: &str) -> &'a Value {
    let check = format!("selftest/{cause}");
    rows.iter().find(|row| row["check"] == *check).expect(&check)
}

#[test]
#[ignore = "needs root"]
fn a_cause_with_its_hook_is_proven() {
    let output = selftest(&["--cause", "connection_refused", "--cause", "handshake_rst"]).output().expect("tracer");
    let rows = records(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (seq, record) in rows.iter().enumerate() {
        assert_eq!((record["type"].as_str(), record["seq"].as_u64()), (Some("finding"), Some(seq as u64)));
        assert_eq!(record["status"], "ok", "{record}");
    }
    let refused = &row(&rows, "connection_refused")["fields"];
    assert_eq!(
        (refused["confidence"].as_str(), refused["hooks"][0].as_str()),
        (Some("proven"), Some("tcp_send_reset"))
    );
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.starts_with("tracer: selftest: kernel ") && stderr.contains("2 shown, 0 failed"), "{stderr}");
}

#[test]
#[ignore = "needs root"]
fn a_cause_that_cannot_be_shown_is_unknown_with_a_reason() {
    let output = selftest(&["--cause", "exec_failed"]).output().expect("tracer");
    let rows = records(&output.stdout);
    assert_eq!((output.status.code(), rows.len()), (Some(0), 1), "{rows:?}");
    let shown = row(&rows, "exec_failed");
    assert_eq!(shown["status"], "unknown");
    assert!(shown["observed"].as_str().expect("why").contains("kubelet"), "{shown}");
}

#[test]
#[ignore = "needs root"]
fn nothing_is_left_at_the_end() {
    let mut run = RunningSelftest::new();
    assert!(run.ended().success());
    assert_eq!((run.left(), run.groups()), (vec![], vec![]));
}

#[test]
#[ignore = "needs root"]
fn after_sigterm_nothing_is_left() {
    let mut run = RunningSelftest::new();
    run.signal(Signal::SIGTERM);
    assert_eq!(run.ended().signal(), Some(Signal::SIGTERM as i32), "the exit status shows the signal");
    assert_eq!((run.left(), run.groups()), (vec![], vec![]));
}

#[test]
#[ignore = "needs root"]
fn the_next_start_removes_cgroups_that_sigkill_left() {
    let mut run = RunningSelftest::new();
    run.signal(Signal::SIGKILL);
    run.ended();
    // The kernel removes everything except cgroups.
    assert_eq!(run.left(), [""; 0]);
    let next = selftest(&["--cause", "exec_failed"]).output().expect("tracer");
    assert_eq!((next.status.code(), run.groups()), (Some(0), vec![]));
}

/// Each of two selftests sees only its own failures, and does not remove the other's node.
#[test]
#[ignore = "needs root"]
fn two_selftests_at_once_both_succeed() {
    let first = RunningSelftest::new();
    let second = selftest(&["--cause", "mid_stream_rst,app_status_failure"]).output().expect("tracer");
    let first = first.child.wait_with_output().expect("the first");
    for output in [&first, &second] {
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[ignore = "needs root"]
fn without_privileges_the_missing_capabilities_are_named() {
    let output = as_nobody(&mut Command::new("setpriv"), &["selftest"]).output().expect("setpriv");
    reports_one_line(&output, 3, &["CAP_SYS_ADMIN", "CAP_NET_ADMIN"]);
}
