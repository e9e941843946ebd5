//! Starts programs, and prints the progress of long steps.

use std::ffi::OsStr;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};

/// An error with its own exit code.
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

/// An error with exit code 3: the machine lacks something that this command cannot install.
pub(crate) fn missing(message: String) -> anyhow::Error {
    anyhow!(Exit { code: 3, message })
}

/// Fails without root, and names the reason.
pub(crate) fn need_root(what: &str) -> Result<()> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(missing(format!("{what}: run it as root"))) }
}

/// The exit code of an error, or 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    error.downcast_ref::<Exit>().map_or(1, |exit| exit.code)
}

/// The checkout. `cargo run` names it, also to a binary that cargo took from the target folder of another one.
pub(crate) fn root() -> &'static Path {
    static HERE: LazyLock<PathBuf> = LazyLock::new(|| {
        let named = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        named.filter(|it| it.ends_with("xtask")).unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into())
    });
    HERE.parent().unwrap_or(&HERE)
}

pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

pub(crate) fn release_bin(name: &str) -> PathBuf {
    target().join("release").join(name)
}

pub(crate) fn debug_bin(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// Runs a long step. Prints a line before it, and one with the duration after it.
pub(crate) fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("xtask: {what} ...");
    let begun = Instant::now();
    let result = work();
    let how = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!("xtask: {what}: {how} in {:.1} s", begun.elapsed().as_secs_f64());
    result
}

/// A command that runs in the root of the tree, without stdin.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // A copy of this program on another machine has no tree.
    if root().is_dir() {
        command.current_dir(root());
    }
    command.stdin(Stdio::null());
    command
}

/// The cargo that started this program.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets variables about this package. A build script that depends on them, as ring's does, would run
    // again.
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

/// Runs a program to its end. It writes to the same output as xtask.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a program and returns its standard output. If it fails, the error has its standard error.
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

/// Whether a program exists and exits with 0 for these arguments.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = command(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Finds a program in `PATH` or in the directories of system programs.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(system).map(|dir| dir.join(program));
    candidates.find(|candidate| candidate.is_file())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// One word, quoted for a POSIX shell.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Compiles a regular expression of this program.
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
    fn a_missing_program_is_exit_code_3() {
        assert_eq!(exit_code(&missing("x".into())), 3);
        assert_eq!(exit_code(&anyhow!("x")), 1);
        assert_eq!(exit_code(&missing("x".into()).context("while y")), 3);
    }
}
