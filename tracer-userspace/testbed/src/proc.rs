//! Child processes with line-based input and output, and the name of this process.

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

/// Sets the name of this thread and of threads that it starts later.
pub fn rename(comm: &str) -> Result<()> {
    Ok(nix::sys::prctl::set_name(&CString::new(comm)?)?)
}

/// A child process. It is killed on drop.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running child process with its lines.
#[derive(Debug)]
pub struct Proc {
    child: Killed,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    what: String,
}

impl Proc {
    /// Starts the command with piped stdin and stdout. The caller chooses stderr.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let what = format!("{:?}", command.get_program());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Killed(command.spawn().with_context(|| format!("start {what}"))?);
        let stdout = child.stdout.take().context("stdout of a child")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines, what })
    }

    /// Its stderr, if the caller piped it.
    pub fn stderr(&mut self) -> Result<ChildStderr> {
        self.child.stderr.take().with_context(|| format!("stderr of {}", self.what))
    }

    /// Waits for the next line of stdout.
    pub fn line(&self, patience: Duration) -> Result<String> {
        self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => anyhow!("{} printed nothing for {patience:?}", self.what),
            RecvTimeoutError::Disconnected => anyhow!("{} ended early", self.what),
        })
    }

    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().with_context(|| format!("stdin of {}", self.what))?;
        writeln!(stdin, "{line}").with_context(|| format!("write to {}", self.what))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends successfully, and returns the lines of stdout.
    pub fn finish(&mut self, patience: Duration) -> Result<Vec<String>> {
        drop(self.stdin.take());
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => bail!("{} did not end within {patience:?}", self.what),
            }
        }
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{}: {status}", self.what);
        }
        Ok(lines)
    }
}
