//! Commands of exec probes in containers with real limits: the cgroups, their counters and what the tasks wait for are
//! those of this kernel. The lines of the kubelet are made, since no runtime runs here.
//!
//! Needs root, and cgroups with the controllers `pids` and `memory`, of either version. Run with
//! `cargo test -p tracer-userspace --test limits_live -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracer_node::cgroups::{Hierarchy, Mounts};

use common::{Killed, NamedProcess, Scratch, klog_header, next, printed, soon};

const RUNC: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9f\": OCI runtime exec failed: exec failed: unable to start container process: ";

/// A container without a runtime: its cgroups, and a process in them. The cgroups are removed at the end.
struct Container {
    number: u32,
    process: Option<Killed>,
    folders: Vec<PathBuf>,
}

impl Container {
    /// Makes its cgroups. Where `pids` and `memory` have hierarchies of their own, those are used.
    fn make(number: u32) -> Self {
        let mut new = Self { number, process: None, folders: Vec::new() };
        let mounts = Mounts::read().unwrap();
        for hierarchy in [Hierarchy::Unified, Hierarchy::Pids, Hierarchy::Memory, Hierarchy::Cpu] {
            let Some(root) = mounts.places(hierarchy).next() else { continue };
            if hierarchy == Hierarchy::Unified {
                // Without effect where other hierarchies have these controllers.
                let _ = ["+pids", "+memory", "+cpu"].map(|on| fs::write(root.join("cgroup.subtree_control"), on));
            }
            let folder = root.join(format!("kubepods-pod{}.slice:cri-containerd:{}", new.uid(), new.id()));
            fs::create_dir(&folder).unwrap();
            new.folders.push(folder);
        }
        new
    }

    fn uid(&self) -> String {
        format!("11111111-2222-3333-4444-{:012}", self.number)
    }

    fn id(&self) -> String {
        format!("{:032x}{:032x}", std::process::id(), self.number)
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|file| file.exists())
    }

    /// Sets a limit, in the file of version 2 or 1.
    fn limit(&self, names: &[&str], value: &str) {
        let file = names.iter().find_map(|name| self.file(name)).expect("a controller");
        fs::write(file, value).unwrap();
    }

    /// Runs a command in it, as a runtime does for a probe.
    fn command(&self, args: &[&str]) -> Command {
        let join: String =
            self.folders.iter().map(|it| format!("echo $$ > '{}/cgroup.procs'; ", it.display())).collect();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{join} exec \"$@\""), "sh"]).args(args).stdin(Stdio::null());
        command
    }

    /// Starts its process, with a network namespace of its own.
    fn start(&mut self, args: &[&str]) {
        let process = self.command(&[&["unshare", "--net"], args].concat()).spawn().unwrap();
        let (comm, exe) = (format!("/proc/{}/comm", process.id()), args[0].to_owned());
        self.process = Some(Killed(process));
        soon("the container runs", || fs::read_to_string(&comm).ok().filter(|it| it.trim() == exe));
    }

    /// The list of pods for tracer. Its probe has a timeout of one second.
    fn pods(&self, period_s: u32) -> Value {
        json!({"apiVersion": "v1", "kind": "PodList", "items": [{
            "metadata": {"name": "web", "namespace": "default", "uid": self.uid()},
            "spec": {"containers": [{"name": "web", "readinessProbe":
                {"exec": {"command": ["true"]}, "timeoutSeconds": 1, "periodSeconds": period_s}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "web", "containerID":
                format!("containerd://{}", self.id()), "ready": true, "restartCount": 0, "image": "", "imageID": "",
                "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}]},
        }]})
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.process = None;
        self.folders.iter().for_each(|folder| _ = fs::remove_dir(folder));
    }
}

/// A tracer that reads the lines of a kubelet's log.
struct Traced {
    _prober: NamedProcess,
    _tracer: Killed,
    records: Receiver<Value>,
    uid: String,
    log: PathBuf,
}

impl Traced {
    fn start(container: &Container, period_s: u32, scratch: &Scratch) -> Self {
        let name = format!("limits{}-{}", container.number, std::process::id());
        let prober = NamedProcess::start(&mut Command::new("env"), &name);
        let (pods, log) = (scratch.path("pods.json"), scratch.path("kubelet.log"));
        fs::write(&pods, container.pods(period_s).to_string()).unwrap();
        fs::write(&log, "").unwrap();
        let mut command = common::tracer();
        command.args(["attach", "-o", "json", "--no-api", "--prober", &name, "--pods"]).arg(pods);
        command.arg("--kubelet-log").arg(&log).stdout(Stdio::piped());
        let mut tracer = Killed(command.spawn().unwrap());
        let records = printed(&mut tracer);
        let traced = Self { _prober: prober, _tracer: tracer, records, uid: container.uid(), log };
        next(&traced.records, "start");
        traced
    }

    /// The verdict on a line of the kubelet about a probe.
    fn verdict(&self, message: &str, rest: &str) -> Value {
        let of = format!("probeType=\"Readiness\" pod=\"default/web\" podUID=\"{}\" containerName=\"web\"", self.uid);
        let mut log = fs::OpenOptions::new().append(true).open(&self.log).unwrap();
        writeln!(log, "{} {message:?} {rest} {of}", klog_header()).unwrap();
        next(&self.records, "verdict")["verdict"].take()
    }

    fn not_run(&self, words: &str) -> Value {
        self.verdict("Probe errored", &format!("err={:?}", format!("{RUNC}{words}: unknown")))
    }

    fn timed_out(&self) -> Value {
        self.verdict("Probe failed", "probeResult=\"failure\" output=\"command \\\"true\\\" timed out\"")
    }
}

/// A reading must be older than this to show what changed.
fn wait_for_age(since: Instant, age: Duration) {
    soon("the reading is old enough", || (since.elapsed() > age).then_some(()));
}

fn evidence(verdict: &Value, hook: &str) -> String {
    let row = verdict["evidence"].as_array().unwrap().iter().find(|row| row["hook"] == hook);
    assert!(row.is_some(), "no {hook} in {verdict:#}");
    row.unwrap()["text"].as_str().unwrap().to_owned()
}

/// The verdict on a failure of the runtime after this command has met a limit. Only then tracer has a reading from before.
fn not_run_after(container: &Container, command: &[&str], words: &str) -> Value {
    let scratch = Scratch::new();
    let traced = Traced::start(container, 10, &scratch);
    let (first, read) = (traced.not_run(words), Instant::now());
    assert_eq!(first["cause"], "exec_failed", "{first:#}");
    wait_for_age(read, Duration::from_millis(1_500));
    assert!(!container.command(command).stderr(Stdio::null()).status().unwrap().success());
    let second = traced.not_run(words);
    assert_eq!((&second["cause"], &second["confidence"]), (&json!("exec_not_run"), &json!("likely")), "{second:#}");
    second
}

#[test]
#[ignore = "needs root and cgroups"]
fn a_limit_of_processes_that_stops_the_runtime_is_named() {
    let mut container = Container::make(1);
    container.limit(&["pids.max"], "2");
    container.start(&["sleep", "300"]);
    // The shell is the second process, and the third one is one too many.
    let command = ["sh", "-c", "true | true"];
    let second = not_run_after(&container, &command, "error executing setns process: exit status 1");
    let file = if container.file("pids.events.local").is_some() { "pids.events.local" } else { "pids.events" };
    let text = evidence(&second, file);
    assert!(text.contains("1 more than") && text.ends_with("; 1 of 2 processes"), "{text}");
}

#[test]
#[ignore = "needs root and cgroups"]
fn a_limit_of_memory_that_stops_the_runtime_is_named() {
    let mut container = Container::make(2);
    container.limit(&["memory.max", "memory.limit_in_bytes"], "8388608");
    container.start(&["sleep", "300"]);
    let command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"];
    let second = not_run_after(&container, &command, "read init-p: connection reset by peer");
    let file = if container.file("memory.events").is_some() { "memory.events" } else { "memory.oom_control" };
    assert!(evidence(&second, file).contains(": oom_kill 1, 1 more than"), "{second:#}");
    assert!(second["summary"].as_str().unwrap().contains("too little memory"), "{second:#}");
}

const BUSY: &str = "while :; do :; done";

/// Two failures of a command, one period after the other. The second one has a reading from before its attempt.
fn second_timeout(container: &Container) -> Value {
    let (scratch, period) = (Scratch::new(), Duration::from_secs(2));
    let traced = Traced::start(container, 2, &scratch);
    let (first, written) = (traced.timed_out(), Instant::now());
    assert_eq!((&first["cause"], &first["also"]), (&json!("exec_timeout"), &json!([])), "{first:#}");
    wait_for_age(written, period);
    let second = traced.timed_out();
    assert_eq!((&second["cause"], &second["confidence"]), (&json!("exec_timeout"), &json!("likely")), "{second:#}");
    second
}

#[test]
#[ignore = "needs root and cgroups"]
fn a_cpu_limit_is_named_beside_a_command_that_timed_out() {
    let mut container = Container::make(3);
    container.limit(&["cpu.max", "cpu.cfs_quota_us"], "5000");
    container.start(&["sh", "-c", BUSY]);
    let second = second_timeout(&container);
    assert_eq!(second["also"], json!(["cpu_throttled"]), "{second:#}");
    assert!(evidence(&second, "cpu.stat").contains("was throttled"), "{second:#}");
}

/// A busy neighbour on the only processor that the container may use.
#[test]
#[ignore = "needs root and cgroups"]
fn a_container_that_gets_no_processor_is_named_beside_a_command_that_timed_out() {
    if !Path::new("/proc/pressure/cpu").exists() {
        // The test harness captures `eprintln!`, but not this.
        let _ = writeln!(std::io::stderr(), "SKIPPED: this kernel counts no pressure (CONFIG_PSI)");
        return;
    }
    let mut container = Container::make(4);
    // In version 1 the least is 2.
    container.limit(&["cpu.weight", "cpu.shares"], "2");
    let _neighbour = Killed(Command::new("taskset").args(["-c", "0", "sh", "-c", BUSY]).spawn().unwrap());
    container.start(&["sh", "-c", BUSY]);
    let pid = container.process.as_ref().unwrap().id().to_string();
    assert!(Command::new("taskset").args(["-cp", "0", &pid]).stdout(Stdio::null()).status().unwrap().success());
    let second = second_timeout(&container);
    assert_eq!(second["also"], json!(["target_starved"]), "{second:#}");
    assert!(evidence(&second, "cpu.pressure").contains("they waited for a processor"), "{second:#}");
}

/// Its command is slow by itself.
#[test]
#[ignore = "needs root and cgroups"]
fn nothing_is_named_beside_a_slow_command_of_an_idle_container() {
    let mut container = Container::make(5);
    container.start(&["sleep", "300"]);
    assert_eq!(second_timeout(&container)["also"], json!([]));
}
