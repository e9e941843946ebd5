//! The tracer that is measured or tried: started as an operator would, its lines stamped as they arrive.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, gettid};
use serde_json::Value;

use super::PROBER;
use super::stage::{Running, Stage};
use crate::sh;

const PATIENCE: Duration = Duration::from_secs(20);

/// A record, and when its line could be read (CLOCK_BOOTTIME, nanoseconds).
pub(crate) struct Line {
    /// The record.
    pub(crate) record: Value,
    /// The time.
    pub(super) at: u64,
}

impl Line {
    /// Whether it is of this type.
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.record["type"] == kind
    }
}

/// A running tracer; killed on drop.
pub(crate) struct Subject {
    child: Running,
    lines: Receiver<(String, u64)>,
    /// From the start of its process to its `start` record.
    pub(super) attached_after: Duration,
    /// The `start` record.
    pub(crate) start: Value,
}

impl Subject {
    /// `tracer COMMAND`, until it says that it is attached.
    pub(super) fn start(stage: &Stage, command: &str, all_connections: bool) -> Result<Self> {
        let mut tracer = sh::command(sh::release_bin("tracer"));
        tracer.args([command, "-o", "json", "--prober", PROBER, "--pods"]).arg(&stage.pods);
        if all_connections {
            tracer.arg("--all-connections");
        }
        Self::spawn(tracer)
    }

    /// The daemon, told of the pods by the cluster API.
    pub(super) fn in_cluster(kubeconfig: &Path, node: &str) -> Result<Self> {
        let mut tracer = sh::command(sh::release_bin("tracer"));
        tracer.args(["run", "-o", "json", "--prober", PROBER, "--node-name", node, "--kubeconfig"]).arg(kubeconfig);
        Self::spawn(tracer)
    }

    /// Any command that prints records, until it says that it is attached.
    pub(crate) fn spawn(mut tracer: Command) -> Result<Self> {
        let log = File::create(log())?;
        let begun = boot_ns();
        let mut child = tracer.stdout(Stdio::piped()).stderr(log).spawn().context("start tracer")?;
        let (tell, lines) = channel();
        let stdout = child.stdout.take().context("stdout of tracer")?;
        thread::spawn(move || stamp(stdout, &tell));
        let mut subject = Self { child: Running(child), lines, attached_after: Duration::ZERO, start: Value::Null };
        let first = subject.next(PATIENCE)?.context("no start record")?;
        subject.attached_after = Duration::from_nanos(first.at.saturating_sub(begun));
        if !first.is("start") {
            bail!("the first record is not `start`: {}", first.record);
        }
        subject.start = first.record;
        Ok(subject)
    }

    /// The next record; none if it stays silent that long.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Option<Line>> {
        match self.lines.recv_timeout(patience) {
            Ok((line, at)) => {
                let record = serde_json::from_str(&line).with_context(|| format!("not a record: {line}"))?;
                Ok(Some(Line { record, at }))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("tracer ended: {}", said())
            }
        }
    }

    /// SIGTERM; every record that was not taken yet, the last of which is `stop`.
    pub(crate) fn stop(mut self) -> Result<Vec<Line>> {
        kill(Pid::from_raw(self.child.0.id().cast_signed()), Signal::SIGTERM).context("end tracer")?;
        let mut lines = Vec::new();
        while let Some(line) = self.next(PATIENCE)? {
            let last = line.is("stop");
            lines.push(line);
            if last {
                let status = self.child.0.wait()?;
                // 1: it found something.
                ensure!(matches!(status.code(), Some(0 | 1)), "tracer ended with {status}: {}", said());
                return Ok(lines);
            }
        }
        bail!("no stop record from the tracer")
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// A field of `/proc/PID/status` in KiB.
    pub(super) fn memory(&self, field: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).context("status of tracer")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|value| value.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("{field} of tracer"))
    }

    /// Processor time of its event loop so far, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).context("schedstat of tracer")?;
        let run: f64 = stat.split_whitespace().next().unwrap_or_default().parse().context("schedstat of tracer")?;
        Ok(run / 1e9)
    }

    /// The same of all its threads, those that have ended included.
    pub(super) fn cpu_seconds_of_all(&self) -> Result<f64> {
        let pid = Pid::from_raw(self.pid().cast_signed());
        let spent = clock_getcpuclockid(pid).and_then(clock_gettime).context("processor time of tracer")?;
        Ok(Duration::from(spent).as_secs_f64())
    }
}

fn log() -> PathBuf {
    sh::target().join("bench-tracer.log")
}

/// What it said on stderr.
fn said() -> String {
    fs::read_to_string(log()).unwrap_or_default().trim().to_owned()
}

/// CLOCK_BOOTTIME now, nanoseconds.
fn boot_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0, |now| now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned())
}

/// Stamps lines. In the real-time class if possible: under load it is the tracer's delay that counts,
/// not how long this program waits for a processor.
fn stamp(stdout: ChildStdout, tell: &Sender<(String, u64)>) {
    let me = gettid().to_string();
    let _ = sh::command("chrt").args(["-f", "-p", "10", &me]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if tell.send((line, boot_ns())).is_err() {
            break;
        }
    }
}
