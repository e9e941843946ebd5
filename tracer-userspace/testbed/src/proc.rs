//! Processes: children that talk in lines and are killed on drop, and the name of the own one.

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

/// Calls this process, and the threads it will have, by this name.
pub fn rename(comm: &str) -> Result<()> {
    Ok(nix::sys::prctl::set_name(&CString::new(comm)?)?)
}

/// A running child, its stdout read line by line.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    what: String,
}

impl Proc {
    /// Starts it; stderr stays the caller's choice.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let what = format!("{:?}", command.get_program());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {what}"))?;
        let stdout = child.stdout.take().context("stdout of a child")?;
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines, what })
    }

    /// The next line it prints.
    pub fn line(&self, patience: Duration) -> Result<String> {
        self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => anyhow!("{} printed nothing for {patience:?}", self.what),
            RecvTimeoutError::Disconnected => anyhow!("{} ended early", self.what),
        })
    }

    /// Sends it a line.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().with_context(|| format!("stdin of {}", self.what))?;
        writeln!(stdin, "{line}").with_context(|| format!("write to {}", self.what))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, which must be a success.
    pub fn finish(mut self, patience: Duration) -> Result<Vec<String>> {
        drop(self.stdin.take());
        let mut reported = Vec::new();
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) => reported.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("{} did not end within {patience:?}", self.what),
            }
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{}: {status}", self.what);
        }
        Ok(reported)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
