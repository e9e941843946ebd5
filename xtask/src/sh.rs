//! Processes and progress lines: what every command needs to start programs and say what it is doing.

use std::ffi::OsStr;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};

/// An error with an exit code of its own.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The machine lacks something that this command cannot bring along: exit code 3.
pub(crate) fn missing(message: String) -> anyhow::Error {
    anyhow!(Exit { code: 3, message })
}

/// Fails without root, and says what needs it.
pub(crate) fn need_root(what: &str) -> Result<()> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(missing(format!("{what}: run it as root"))) }
}

/// The exit code an error asks for, else 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Exit>().map_or(1, |exit| exit.code)
}

/// The root of the working tree.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A release binary of the workspace.
pub(crate) fn release_bin(name: &str) -> PathBuf {
    target().join("release").join(name)
}

/// A binary of the demo and the tests.
pub(crate) fn debug_bin(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// Does one long step, with a line before it and one with the seconds after it.
pub(crate) fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("xtask: {what} ...");
    let begun = Instant::now();
    let result = work();
    let how = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!("xtask: {what}: {how} in {:.1} s", begun.elapsed().as_secs_f64());
    result
}

/// A program to be started in the root of the tree, without stdin.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that started this program.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` tells us about this package. A build script that looks at it (ring's does) would run again for it.
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|about| shown.starts_with(about))
        {
            command.env_remove(&name);
        }
    }
    command.args(args);
    command
}

/// Runs a program to its end; its output goes where ours goes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a program and returns its standard output; its standard error is in the error, if it fails.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program to its end with this text on its standard input.
pub(crate) fn feed(command: &mut Command, input: &str) -> Result<()> {
    let mut child =
        command.stdin(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    let written = child.stdin.take().context("no standard input")?.write_all(input.as_bytes());
    let status = child.wait()?;
    if !status.success() {
        bail!("{} ended with {status} for {input}", shown(command));
    }
    written.with_context(|| shown(command))
}

/// Whether a program can be found and says 0 to these arguments.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = command(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether a program is in `PATH` or in the directories of system programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(system).map(|dir| dir.join(program));
    candidates.find(|candidate| candidate.is_file())
}

/// A command line as one would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// One word, quoted for a POSIX shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A regular expression of this program's own.
#[expect(clippy::panic, reason = "a fault of this program")]
pub(crate) fn regex(text: &str) -> regex_lite::Regex {
    regex_lite::Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_inside_a_word_survives_the_shell() {
        let script = format!("printf %s {}", quoted("it's $HOME"));
        assert_eq!(capture(command("sh").args(["-c", &script])).ok().as_deref(), Some("it's $HOME"));
    }

    #[test]
    fn what_is_missing_has_its_own_exit_code() {
        assert_eq!(exit_code(&missing("x".into())), 3);
        assert_eq!(exit_code(&anyhow!("x")), 1);
        assert_eq!(exit_code(&missing("x".into()).context("while y")), 3);
    }
}
