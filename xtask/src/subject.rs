//! A tracer beside a program: its records as they come.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

/// A running tracer; killed on drop.
pub(crate) struct Subject {
    child: Child,
    lines: Receiver<String>,
    /// The `start` record.
    pub(crate) start: Value,
}

impl Subject {
    /// Any command that prints records, until it says that it is attached.
    pub(crate) fn spawn(mut tracer: Command) -> Result<Self> {
        let mut child = tracer.stdout(Stdio::piped()).spawn().context("start tracer")?;
        let stdout = child.stdout.take().context("stdout of tracer")?;
        let (sender, lines) = channel();
        thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|it| sender.send(it)));
        let mut subject = Self { child, lines, start: Value::Null };
        subject.start = subject.next(PATIENCE)?.context("no start record")?;
        ensure!(subject.start["type"] == "start", "the first record is not `start`: {}", subject.start);
        Ok(subject)
    }

    /// The next record; none if it stays silent that long.
    pub(crate) fn next(&self, patience: Duration) -> Result<Option<Value>> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => serde_json::from_str(&line).map(Some).with_context(|| format!("not a record: {line}")),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("tracer ended"),
        }
    }

    /// SIGTERM; every record that was not taken yet, the last of which is `stop`.
    pub(crate) fn stop(mut self) -> Result<Vec<Value>> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).context("end tracer")?;
        let mut records = Vec::new();
        while records.last().is_none_or(|record: &Value| record["type"] != "stop") {
            records.push(self.next(PATIENCE)?.context("no stop record from the tracer")?);
        }
        let status = self.child.wait()?;
        // 1: it found something.
        ensure!(matches!(status.code(), Some(0 | 1)), "tracer ended with {status}");
        Ok(records)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
