//! `tracer run` on this kernel: metrics over HTTP, `tracer health`, and rotation. Each test runs in its own network
//! namespace, where this process is the prober.
//!
//! Run with `cargo test -p tracer-userspace --test run_live -- --ignored --test-threads=1`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, sendto, socket};
use serde_json::Value;

use common::{Killed, Scratch, Signal, signal, soon};

const METRICS: &str = "127.0.0.1:9464";
/// A port without a listener.
const CLOSED: &str = "127.0.0.1:9";

/// A node for this thread and its children: a network namespace with `lo` up, an own `/run`, because a node has only
/// one daemon, and a directory.
struct Node {
    directory: Scratch,
}

impl Node {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        Self { directory: Scratch::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    fn health(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let mut command = tracer();
        let output =
            command.arg("health").args(args).arg("--health-socket").arg(self.path("health/sock")).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

struct Daemon(Killed);

impl Daemon {
    fn start(node: &Node, args: &[&str]) -> Self {
        Self::writing_to(File::create(node.path("stderr")).unwrap(), node, args)
    }

    fn writing_to(stderr: impl Into<Stdio>, node: &Node, args: &[&str]) -> Self {
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        let mut command = tracer();
        command.args(["run", "--prober", comm.trim()]).args(args);
        command.arg("--health-socket").arg(node.path("health/sock"));
        Self(Killed(command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap()))
    }

    /// Sends SIGTERM, and returns the exit code.
    fn end(mut self) -> Option<i32> {
        signal(&self.0, Signal::SIGTERM);
        self.0.wait().unwrap().code()
    }
}

fn tracer() -> Command {
    let mut command = common::tracer();
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Head and body of an HTTP response.
fn get(path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(METRICS).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {METRICS}\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

/// The sum of all series that start with this text.
fn sum(metrics: &str, series: &str) -> f64 {
    let values = metrics.lines().filter(|line| line.starts_with(series)).filter_map(|line| line.rsplit_once(' '));
    values.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
}

fn refuse(times: usize) {
    let closed: SocketAddr = CLOSED.parse().unwrap();
    for _ in 0..times {
        TcpStream::connect(closed).unwrap_err();
    }
}

fn records(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may be incomplete.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
#[ignore = "needs root"]
fn a_reader_of_stderr_that_stops_does_not_stop_the_daemon() {
    let node = Node::new();
    let (reader, stderr) = std::io::pipe().unwrap();
    let room = fcntl(&stderr, FcntlArg::F_GETPIPE_SZ).unwrap();
    (&stderr).write_all(&vec![b'\n'; room as usize]).unwrap();
    // It warns that nobody may listen there.
    let daemon = Daemon::writing_to(stderr, &node, &["--metrics-listen", "192.0.2.1:9"]);
    soon("readiness", || (node.health(&["--ready"]).0 == Some(0)).then_some(()));
    assert_eq!(daemon.end(), Some(0));
    drop(reader);
}

#[test]
#[ignore = "needs root"]
fn metrics_and_health_of_a_daemon() {
    let node = Node::new();
    let (code, _, reported) = node.health(&[]);
    assert!(
        code == Some(2) && reported.contains("no `tracer run` listens there") && reported.lines().count() == 1,
        "{reported}"
    );
    // The port is in use: the daemon works without metrics, reports that, and retries until the port is free.
    let taken = TcpListener::bind(METRICS).unwrap();
    let kernel_counts_runs = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap().trim() == "1";
    let daemon = Daemon::start(&node, &["--metrics-listen", METRICS]);
    soon("readiness", || (node.health(&["--ready"]).0 == Some(0)).then_some(()));
    let report = soon("the report", || {
        let report: Value = serde_json::from_str(&node.health(&[]).1).unwrap();
        report["degraded"][0].is_string().then_some(report)
    });
    assert!(report["degraded"][0].as_str().unwrap().contains("Address already in use"), "{report}");
    assert!(report["hooks_attached"].as_u64().unwrap() > 5, "{report}");
    refuse(3);
    let warnings = fs::read_to_string(node.path("stderr")).unwrap();
    assert_eq!(warnings.lines().filter(|line| line.contains(METRICS)).count(), 1, "{warnings}");
    drop(taken);
    // The failures before the first request are counted.
    let metrics = soon("three verdicts", || {
        let (head, body) = get("/metrics")?;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
        let verdicts = sum(&body, "tracer_verdicts_total{cause=\"connection_refused\"");
        // The daemon updates these once a second.
        let events = sum(&body, "tracer_events_total{hook=\"inet_sock_set_state\"}");
        (verdicts >= 3.0 && events >= 6.0).then_some(body)
    });
    assert!(sum(&metrics, "tracer_attempts_total{outcome=\"failure\"") >= 3.0, "{metrics}");
    assert!(sum(&metrics, "tracer_verdict_latency_seconds_count") >= 3.0);
    assert_eq!(sum(&metrics, "tracer_hook_attached{hook=\"inet_sock_set_state\"}"), 1.0);
    assert_eq!(sum(&metrics, "tracer_events_lost_total"), 0.0);
    assert!(metrics.contains("tracer_build_info{version=") && !metrics.contains("pod="), "{metrics}");
    assert_eq!(metrics.contains("tracer_program_run"), kernel_counts_runs, "{metrics}");
    // The kernel counts runs of programs while this is open.
    let counting = aya::sys::enable_stats(aya::sys::Stats::RunTime).unwrap();
    soon("runs of programs", || {
        refuse(1);
        let body = get("/metrics")?.1;
        let runs = sum(&body, "tracer_program_runs_total{hook=\"inet_sock_set_state\"}");
        (runs > 0.0 && sum(&body, "tracer_program_run_seconds_total{hook=\"inet_sock_set_state\"}") > 0.0).then_some(())
    });
    drop(counting);
    assert!(get("/healthz").unwrap().0.starts_with("HTTP/1.1 200"));
    assert!(get("/readyz").unwrap().0.starts_with("HTTP/1.1 200"));
    assert_eq!(fs::metadata(node.path("health/sock")).unwrap().permissions().mode() & 0o777, 0o600);
    // A pipeline that hangs does not answer. Here a signal stops the whole process.
    signal(&daemon.0, Signal::SIGSTOP);
    let (code, _, reported) = node.health(&[]);
    signal(&daemon.0, Signal::SIGCONT);
    assert!(code == Some(2) && reported.contains("does not answer"), "{reported}");
    assert_eq!(daemon.end(), Some(0));
    assert!(!node.path("health/sock").exists());
    assert_eq!(node.health(&["--ready"]).0, Some(2));
}

#[test]
#[ignore = "needs root"]
fn rotation_loses_no_line() {
    let node = Node::new();
    let out = node.path("out.ndjson");
    let args = ["--output-file", out.to_str().unwrap(), "--attempts", "--output-max-size", "64KiB"];
    let daemon = Daemon::start(&node, &[&args[..], &["--output-max-files", "100"]].concat());
    soon("the start record", || (!records(&out).is_empty()).then_some(()));
    refuse(400);
    signal(&daemon.0, Signal::SIGHUP);
    refuse(400);
    assert_eq!(daemon.end(), Some(0));
    let rotated = (1..).map(|n| node.path(&format!("out.ndjson.{n}"))).take_while(|path| path.exists());
    let mut files: Vec<PathBuf> = rotated.collect();
    assert!(files.len() > 5, "{files:?}");
    files.reverse();
    files.push(out);
    let mut all = Vec::new();
    for file in &files {
        let meta = fs::metadata(file).unwrap();
        assert!(meta.len() <= 64 << 10, "{} is {} long", file.display(), meta.len());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{}", file.display());
        all.extend(records(file));
    }
    for (n, record) in all.iter().enumerate() {
        assert_eq!(record["seq"], n, "{record}");
    }
    let count = |kind: &str| all.iter().filter(|record| record["type"] == kind).count();
    assert_eq!((count("start"), count("stop"), count("loss")), (1, 1, 0));
    assert_eq!((count("verdict"), count("attempt")), (800, 800));
}

/// A file system of one megabyte.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
#[ignore = "needs root"]
fn after_a_full_disk_all_records_are_written() {
    let node = Node::new();
    let disk = Disk::mount(node.path("disk"));
    let out = disk.0.join("out.ndjson");
    let args = ["--output-file", out.to_str().unwrap(), "--output-max-size", "400KiB", "--output-max-files", "1"];
    let daemon = Daemon::start(&node, &[&args[..], &["--metrics-listen", METRICS]].concat());
    soon("the start record", || (!records(&out).is_empty()).then_some(()));
    let filler = disk.0.join("filler");
    let _ = File::create(&filler).unwrap().write_all(&vec![0; 1 << 20]);
    refuse(60);
    // The daemon goes on to count verdicts while it can write none.
    let degraded = soon("the trouble", || {
        let report: Value = serde_json::from_str(&node.health(&["--ready"]).1).unwrap();
        report["degraded"][0].as_str().map(str::to_owned)
    });
    assert!(degraded.starts_with("output: --output-file") && degraded.contains("No space left"), "{degraded}");
    soon("verdicts that are counted meanwhile", || {
        (sum(&get("/metrics")?.1, "tracer_verdicts_total") >= 60.0).then_some(())
    });
    let reported = fs::read_to_string(node.path("stderr")).unwrap();
    assert_eq!(reported.lines().filter(|line| line.contains("No space left")).count(), 1, "{reported}");
    // While the disk is full, the file has only complete records.
    let all = || [records(&disk.0.join("out.ndjson.1")), records(&out)].concat();
    let before = all().len();
    fs::remove_file(&filler).unwrap();
    soon("the records that waited", || {
        let report: Value = serde_json::from_str(&node.health(&[]).1).unwrap();
        (all().len() > before + 50 && report["degraded"].as_array().unwrap().is_empty()).then_some(())
    });
    assert_eq!(daemon.end(), Some(0));
    for (n, record) in all().iter().enumerate() {
        assert_eq!(record["seq"], n, "{record}");
    }
}

#[test]
#[ignore = "needs root"]
fn attempts_from_before_the_last_hook_was_attached_get_no_verdict() {
    let node = Node::new();
    let out = node.path("out.ndjson");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    // Attempts run while the hooks are attached one by one. A verdict on an attempt with missing events would be wrong.
    let connects = std::thread::spawn(move || {
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            refuse(1);
            // Nothing reads the ring until all hooks are attached. The pause keeps the ring from overflowing.
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let daemon = Daemon::start(&node, &["--output-file", out.to_str().unwrap()]);
    soon("a verdict", || records(&out).iter().any(|record| record["type"] == "verdict").then_some(()));
    stop.send(()).unwrap();
    connects.join().unwrap();
    assert_eq!(daemon.end(), Some(0));
    let all = records(&out);
    assert!(all.iter().all(|record| record["type"] != "loss"), "{all:?}");
    let attached = all[0]["time_boot_ns"].as_u64().unwrap();
    for verdict in all.iter().filter(|record| record["type"] == "verdict") {
        assert_eq!(verdict["verdict"]["cause"], "connection_refused", "{verdict}");
        assert!(verdict["time_boot_ns"].as_u64().unwrap() >= attached, "{verdict}");
    }
}

/// A connect without a call of `connect(2)`, by TCP Fast Open, and then a call that fails: it has nothing to do with it.
#[test]
#[ignore = "needs root"]
fn the_error_of_another_connect_is_not_that_of_a_connect_without_a_call() {
    let node = Node::new();
    let (file, comm) = (node.path("recording"), fs::read_to_string("/proc/self/comm").unwrap());
    let mut command = tracer();
    command.args(["record", "-o", "json", "--prober", comm.trim()]).arg(&file);
    let mut child = Killed(command.stdout(Stdio::piped()).spawn().unwrap());
    let printed = common::printed(&mut child);
    assert_eq!(printed.recv().unwrap()["type"], "start");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = SockaddrStorage::from(server.local_addr().unwrap());
    let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    let fast_open = MsgFlags::from_bits_retain(libc::MSG_FASTOPEN);
    assert_eq!(sendto(client.as_raw_fd(), b"hello", &to, fast_open), Ok(5));
    assert!(UnixStream::connect("/nonexistent").is_err());
    drop((client, server));
    signal(&child, Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    let recorded = fs::read_to_string(&file).unwrap();
    let has = |kind: &str| recorded.contains(&format!(r#""observation":"{kind}""#));
    assert!(has("connect") && !has("connect_failed"), "{recorded}");
}

#[test]
#[ignore = "needs root"]
fn an_ignored_hangup_does_not_end_attach() {
    let node = Node::new();
    // An ignored signal is inherited, and the parent of these tests may ignore SIGHUP. So `env` sets it each time.
    let run = |hangup: &str| {
        let mut command = Command::new("env");
        command.args([hangup, env!("CARGO_BIN_EXE_tracer"), "attach", "--prober", "nobody", "--duration", "2s"]);
        let mut child = command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut text).unwrap();
        signal(&child, Signal::SIGHUP);
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
        let stop: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        stop["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(run("--default-signal=HUP"), "signal");
    assert_eq!(run("--ignore-signal=HUP"), "duration");
    drop(node);
}
