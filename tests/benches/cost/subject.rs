//! The tracer that is measured. It runs as an operator would start it, and each line gets the time of its arrival.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, gettid};
use serde_json::Value;
use tracer_node::clock::boot_ns;
use tracer_testbed::net::die_with_parent;
use tracer_testbed::proc::Killed;
use tracer_testbed::watcher::without_settings;

use super::PROBER;
use super::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(20);

/// A record, and when its line could be read (CLOCK_BOOTTIME, nanoseconds).
pub(super) struct Line {
    pub(super) record: Value,
    pub(super) at: u64,
}

impl Line {
    pub(super) fn is(&self, kind: &str) -> bool {
        self.record["type"] == kind
    }
}

pub(super) struct Subject {
    child: Killed,
    lines: Receiver<(String, u64)>,
    /// Time from the start of its process to its `start` record.
    pub(super) attached_after: Duration,
    pub(super) start: Value,
}

impl Subject {
    /// Starts `tracer COMMAND` with these flags, and waits until it is attached.
    pub(super) fn start(stage: &Stage, command: &str, flags: &[&str]) -> Result<Self> {
        let mut tracer = stage.tracer();
        tracer.args([command, "-o", "json", "--prober", PROBER, "--pods"]).arg(&stage.pods).args(flags);
        Self::spawn(tracer)
    }

    /// Starts the daemon. It gets the pods from the cluster API.
    pub(super) fn in_cluster(stage: &Stage, kubeconfig: &Path, node: &str) -> Result<Self> {
        let mut tracer = stage.tracer();
        tracer.args(["run", "-o", "json", "--prober", PROBER, "--node-name", node, "--kubeconfig"]).arg(kubeconfig);
        Self::spawn(tracer)
    }

    fn spawn(mut tracer: Command) -> Result<Self> {
        die_with_parent(without_settings(&mut tracer));
        let begun = boot_ns();
        let mut child = Killed(tracer.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("start tracer")?);
        let (send, lines) = channel();
        let stdout = child.stdout.take().context("stdout of tracer")?;
        thread::spawn(move || stamp(stdout, &send));
        let mut subject = Self { child, lines, attached_after: Duration::ZERO, start: Value::Null };
        let first = subject.next()?;
        ensure!(first.is("start"), "the first record is not `start`: {}", first.record);
        subject.attached_after = Duration::from_nanos(first.at.saturating_sub(begun));
        subject.start = first.record;
        Ok(subject)
    }

    fn next(&self) -> Result<Line> {
        let (line, at) = self.lines.recv_timeout(PATIENCE).context("tracer prints nothing more")?;
        let record = serde_json::from_str(&line).with_context(|| format!("not a record: {line}"))?;
        Ok(Line { record, at })
    }

    /// Sends SIGTERM, and returns all records after the first. The last one is `stop`.
    pub(super) fn stop(mut self) -> Result<Vec<Line>> {
        kill(self.pid(), Signal::SIGTERM).context("end tracer")?;
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &Line| !line.is("stop")) {
            lines.push(self.next()?);
        }
        let status = self.child.wait()?;
        // Exit code 1 means that it found a failure.
        ensure!(matches!(status.code(), Some(0 | 1)), "tracer ended with {status}");
        Ok(lines)
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Processor time of its event loop so far, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).context("schedstat of tracer")?;
        let run: f64 = stat.split_whitespace().next().unwrap_or_default().parse().context("schedstat of tracer")?;
        Ok(run / 1e9)
    }
}

/// A field of `/proc/PID/status` in MiB.
pub(super) fn memory_of(pid: Pid, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("status of a process")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kib.with_context(|| format!("{field} of {pid}"))? / 1024.0)
}

/// Processor time of all threads of a process so far, in seconds. Those that have ended count.
pub(super) fn cpu_seconds_of(pid: Pid) -> Result<f64> {
    let spent = clock_getcpuclockid(pid).and_then(clock_gettime).context("processor time of a process")?;
    Ok(Duration::from(spent).as_secs_f64())
}

/// Reads lines with the time of their arrival. Uses the real-time class if possible: under load, this program must not
/// wait for a processor, because that would count as a delay of tracer.
fn stamp(stdout: ChildStdout, sender: &Sender<(String, u64)>) {
    let me = gettid().to_string();
    let _ = Command::new("chrt").args(["-f", "-p", "10", &me]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if sender.send((line, boot_ns())).is_err() {
            break;
        }
    }
}
