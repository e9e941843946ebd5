//! `tracer selftest` on this kernel: its rows, its exit codes, and that nothing of it stays, however it ends. Needs root.
//!
//! Run with `cargo test -p tracer-userspace --test selftest_live -- --ignored`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// For a tracer that got SIGKILL to detach, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn selftest(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
    command.args(["selftest", "-o", "json"]).args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One that has shown a row, and is in the midst of the next.
struct Midway {
    child: Child,
    /// In the environment of all its processes.
    mark: String,
    /// Those processes, when it had shown a row.
    pids: Vec<u32>,
}

impl Midway {
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
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("the signal");
    }

    /// Waits for its end, and for those that it had started, which are nobody's children then.
    fn ended(&mut self) -> ExitStatus {
        let mut reported = String::new();
        self.child.stderr.take().expect("stderr").read_to_string(&mut reported).expect("stderr");
        let begin = Instant::now();
        while marked(&self.mark).iter().any(|pid| *pid != self.child.id()) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.wait().expect("its end")
    }

    /// Processes, mounts and names of it that are still there.
    fn left(&self) -> Vec<String> {
        let processes = marked(&self.mark).into_iter().map(|pid| format!("process {pid}"));
        let places = ["/run", "/run/netns", "/tmp"].into_iter().flat_map(entries).filter(|name| self.is_mine(name));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mounts: Vec<String> = mounts.lines().filter(|line| line.contains("trw-")).map(str::to_owned).collect();
        processes.chain(places).chain(mounts.into_iter().filter(|line| self.is_mine(line))).collect()
    }

    /// Its cgroups.
    fn groups(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let roots = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
        roots.flat_map(entries).filter(|name| self.is_mine(name)).collect()
    }

    fn is_mine(&self, name: &str) -> bool {
        name.contains("tracer-selftest") || self.pids.iter().any(|pid| name.contains(&format!("trw-{pid}-")))
    }
}

/// The processes with this in their environment.
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

fn rows(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn row<'a>(rows: &'a [Value], cause: &str) -> &'a Value {
    let check = format!("selftest/{cause}");
    rows.iter().find(|row| row["check"] == *check).expect(&check)
}

#[test]
#[ignore = "needs root"]
fn what_is_made_is_proven_by_its_hook() {
    let output = selftest(&["--cause", "connection_refused", "--cause", "handshake_rst"]).output().expect("tracer");
    let rows = rows(&output);
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
fn what_cannot_be_shown_says_why_and_is_no_failure() {
    let output = selftest(&["--cause", "exec_failed"]).output().expect("tracer");
    let rows = rows(&output);
    assert_eq!((output.status.code(), rows.len()), (Some(0), 1), "{rows:?}");
    let shown = row(&rows, "exec_failed");
    assert_eq!(shown["status"], "unknown");
    assert!(shown["observed"].as_str().expect("why").contains("kubelet"), "{shown}");
}

#[test]
#[ignore = "needs root"]
fn nothing_stays_at_the_end() {
    let mut run = Midway::new();
    assert!(run.ended().success());
    assert_eq!((run.left(), run.groups()), (vec![], vec![]));
}

#[test]
#[ignore = "needs root"]
fn a_signal_ends_it_and_nothing_stays() {
    let mut run = Midway::new();
    run.signal(Signal::SIGTERM);
    assert_eq!(run.ended().signal(), Some(Signal::SIGTERM as i32), "who waits must not take it for a success");
    assert_eq!((run.left(), run.groups()), (vec![], vec![]));
}

#[test]
#[ignore = "needs root"]
fn what_sigkill_leaves_is_removed_at_the_next_start() {
    let mut run = Midway::new();
    run.signal(Signal::SIGKILL);
    run.ended();
    // All but cgroups, which no process holds, goes by itself.
    assert_eq!(run.left(), [""; 0]);
    let next = selftest(&["--cause", "exec_failed"]).output().expect("tracer");
    assert_eq!((next.status.code(), run.groups()), (Some(0), vec![]));
}

/// Two at a time on one node: each sees its own failures only, and leaves the other's node alone.
#[test]
#[ignore = "needs root"]
fn two_at_a_time_do_not_disturb_each_other() {
    let first = Midway::new();
    let second = selftest(&["--cause", "mid_stream_rst,app_status_failure"]).output().expect("tracer");
    let first = first.child.wait_with_output().expect("the first");
    for output in [&first, &second] {
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[ignore = "needs root"]
fn without_privileges_it_says_which_are_missing() {
    // Nobody may not run a binary below a folder of root's: it is handed over open.
    let binary = fs::File::open(env!("CARGO_BIN_EXE_tracer")).expect("binary");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    let output = command.args(["/proc/self/fd/0", "selftest"]).stdin(binary).output().expect("setpriv");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(3), 1), "{stderr}");
    assert!(stderr.contains("CAP_SYS_ADMIN") && stderr.contains("CAP_NET_ADMIN"), "{stderr}");
}
