//! Errors that end a run early: one type, its exit code, and one line on stderr.
//!
//! Exit codes: 1 a finding; 2 wrong usage or unreadable input; 3 this kernel or these privileges do not allow the command;
//! 101 a defect of tracer, because Rust ends a program that panics with this code.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::screen::{Screen, columns, is_quiet};
use crate::stderr;

#[derive(Debug, Error)]
pub enum Error {
    /// The command line or the environment is wrong.
    #[error("{0}")]
    Usage(String),
    #[error("{what}{}: {}{advice}", path_text(.path), os_message(.source))]
    File {
        /// The flag or argument that named the file.
        what: &'static str,
        /// The file; empty if `what` is enough (stdout).
        path: PathBuf,
        source: io::Error,
        /// What to do; begins with a separator, or empty.
        advice: &'static str,
    },
    /// A recording, or a file to compare with, is not what it should be.
    #[error("{file}:{line}: {problem}")]
    Input {
        /// The name of the file, as the user typed it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong, and what to do.
        problem: String,
    },
    #[error("another `tracer run`{} has this node ({held}): stop it first; `tracer attach` and `tracer record` work beside it", pid_text(*.pid))]
    SecondInstance {
        /// Its process id, if known.
        pid: Option<i32>,
        /// The lock that the other daemon holds.
        held: String,
    },
    /// A source of observations that a flag names is wrong.
    #[error("{0}")]
    Source(String),
    /// This kernel or these privileges do not allow it.
    #[error("{0}")]
    Kernel(String),
    /// A thread beside the pipeline panicked. The run ends, because it would lack that part.
    #[error("the part `{0}` panicked: this is a defect of tracer, please report it with the lines above")]
    Panicked(&'static str),
}

impl Error {
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Kernel(_) => 3,
            Self::Panicked(_) => 101,
            _ => 2,
        }
    }

    pub fn file(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let advice = match source.raw_os_error() {
            Some(libc::ELOOP) => " (a symbolic link is not followed: name the file itself)",
            Some(libc::ENXIO) => " (a pipe that nobody reads: start the reader first)",
            Some(libc::ENOENT) if matches!(what, "--output-file" | "record FILE") => {
                " (its folder is not there: make it first)"
            }
            Some(libc::EEXIST) => " (an earlier recording is never overwritten: choose another name)",
            _ => "",
        };
        Self::File { what, path: path.into(), source, advice }
    }
}

/// An error and its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = without_number(error.to_string());
        if !text.contains(&message) {
            text = format!("{text}: {}", error.downcast_ref().map_or(message, os_message));
        }
        cause = error.source();
    }
    text
}

/// The system's message without Rust's ` (os error N)`, and which limit of this process was reached.
pub fn os_message(error: &io::Error) -> String {
    let limit = match error.raw_os_error() {
        Some(libc::EFBIG) => " (more than `ulimit -f` allows?)",
        Some(libc::EMFILE) => " (raise `ulimit -n`, of a unit LimitNOFILE=)",
        _ => "",
    };
    format!("{}{limit}", without_number(error.to_string()))
}

/// serde's message without the value that it quotes from the file. That value can be long, and it can be a secret if the
/// user gave the wrong file.
pub fn without_value(message: &str) -> String {
    const QUOTING: [&str; 3] = ["invalid type: ", "invalid value: ", "duplicate entry with key "];
    let from = QUOTING.iter().filter_map(|words| message.find(words).map(|at| at + words.len())).min();
    let value = from.and_then(|from| message[from..].find(['"', '`']).map(|at| from + at));
    let Some(value) = value else { return message.to_owned() };
    let expected = message[value..].rfind(", expected ").map_or("", |at| &message[value + at..]);
    format!("{}{expected}", message[..value].trim_end())
}

/// serde's message with the column, but without the line: the caller adds the line of the file.
pub fn json_problem(error: &serde_json::Error) -> String {
    let text = without_value(&error.to_string());
    match text.split_once(" at line ") {
        Some((problem, _)) => format!("{problem} (column {})", error.column()),
        None => text,
    }
}

fn without_number(mut text: String) -> String {
    if let Some(at) = text.find(" (os error ") {
        let length = text[at..].find(')').map_or(text.len() - at, |last| last + 1);
        text.replace_range(at..at + length, "");
    }
    text
}

/// The file after a blank, or nothing.
fn path_text(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" {}", path.display()) }
}

/// ` (pid N)`, or nothing.
fn pid_text(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// Writes `tracer: error: …` to stderr.
pub fn report(error: &dyn Display) {
    report_line("error", error);
}

/// Writes `tracer: warning: …` to stderr, unless `--quiet` was given.
pub fn warn(message: &dyn Display) {
    if !is_quiet() {
        report_line("warning", message);
    }
}

/// Wraps the text between words, if there is a terminal.
fn wrapped(text: &str, columns: Option<usize>) -> String {
    let mut lines = String::new();
    Screen { colour: false, columns }.lines(&mut lines, "", "  ", text);
    lines
}

/// Writes `tracer: difference: …` to stderr.
pub fn differs(message: &dyn Display) {
    report_line("difference", message);
}

/// Writes one line to stderr, which a terminal wraps, whatever the message contains: `tracer: WORD: …`. The word is the
/// level, or the command of which this is the result. A closed stderr is no error.
pub fn report_line(word: &str, message: &dyn Display) {
    stderr::write(line(word, message).as_bytes());
}

/// `tracer: WORD: …` for stderr.
pub(crate) fn line(word: &str, message: &dyn Display) -> String {
    wrapped(&format!("tracer: {word}: {}", one_line(&message.to_string())), columns(io::stderr()))
}

/// Prints a text. It is no error if the reader closes the pipe early.
pub fn print(out: &mut dyn io::Write, text: &[u8]) -> Result<(), Error> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::file("stdout", "", error)),
        _ => Ok(()),
    }
}

/// Replaces white space and control characters by single blanks.
fn one_line(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a message that ends with the system's message.
    #[derive(Debug, Error)]
    #[error("--pods /x: cannot be read: {}", os_message(source))]
    struct Unreadable {
        source: io::Error,
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(one_line("a\n  b\u{1b}[31m\tc"), "a b [31m c");
    }

    #[test]
    fn values_of_a_file_are_not_reported() {
        let kind = |json: &str| without_value(&serde_json::from_str::<Vec<u8>>(json).unwrap_err().to_string());
        let (text, number) = (kind(r#""eyJ.SECRET, expected \" invalid type: \" at line 1""#), kind("[1, 70000]"));
        assert_eq!(text, "invalid type: string, expected a sequence at line 1 column 52");
        assert_eq!(number, "invalid value: integer, expected u8 at line 1 column 9");
        let missing = "missing field `kind` at line 1 column 2";
        assert_eq!(without_value(missing), missing);
    }

    #[test]
    fn an_error_names_its_flag_and_file() {
        let file = |what, path: &str, number| Error::file(what, path, io::Error::from_raw_os_error(number));
        let second = Error::SecondInstance { pid: Some(7), held: "/run/x".into() };
        for (error, text) in [
            (file("--pods", "/none", libc::ENOENT), "--pods /none: No such file or directory"),
            (file("stdout", "", libc::ENOSPC), "stdout: No space left on device"),
            (
                second,
                "another `tracer run` (pid 7) has this node (/run/x): stop it first; `tracer attach` and `tracer record` work beside it",
            ),
        ] {
            assert_eq!((error.to_string().as_str(), error.exit_code()), (text, 2));
        }
    }

    #[test]
    fn the_number_of_the_system_error_is_removed() {
        let source = io::Error::from_raw_os_error(libc::EPERM);
        assert_eq!(os_message(&source), "Operation not permitted");
        let error = Unreadable { source };
        assert_eq!(chain(&error), "--pods /x: cannot be read: Operation not permitted");
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let error = Unreadable { source };
        assert!(
            chain(&error).ends_with("cannot be read: Too many open files (raise `ulimit -n`, of a unit LimitNOFILE=)")
        );
        assert_eq!(without_number("a: b (os error 2): c".into()), "a: b: c");
    }

    #[test]
    fn a_warning_fits_its_terminal() {
        let text = wrapped("tracer: warning: no kubelet runs here: our own network namespace is looked at", Some(40));
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.len() <= 40), "{text}");
        assert_eq!(wrapped("tracer: warning: a\u{a0}b", None).lines().count(), 1);
    }
}
