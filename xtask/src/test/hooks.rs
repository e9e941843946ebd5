//! `tracer hooks`: no program of ours may be one that a kernel's verifier refuses. Another form takes its place, and nobody
//! notices what that costs.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Args;
use super::scenarios::{Outcome, Row};
use crate::sh;
use crate::vm::{self, Job, Release};

/// The line of the table.
pub(super) const LINE: &str = "(hooks: no form refused by the verifier)";

/// What is read of a `finding` record.
#[derive(Deserialize)]
struct Finding {
    check: String,
    fields: Fields,
}

#[derive(Deserialize)]
struct Fields {
    tried: Vec<Tried>,
}

#[derive(Deserialize)]
struct Tried {
    form: String,
    reason: String,
}

/// On this kernel.
pub(super) fn on_host() -> Row {
    let rows = sh::target().join("hooks.ndjson");
    let words = command(&rows);
    let play = || {
        forget(&rows);
        let status = sh::command(&words[0]).args(&words[1..]).stdout(Stdio::null()).status()?;
        read(&rows, status.code().unwrap_or(-1))
    };
    row(play())
}

/// In a machine of its own.
pub(super) fn in_machine(args: &Args, release: &'static Release) -> Row {
    let rows = vm::directory(release).join("hooks.ndjson");
    let limit = Duration::from_secs(args.minutes * 60);
    forget(&rows);
    let job = Job { release, command: command(&rows), directory: sh::root().to_owned(), limit, echo: false };
    row(job.run_to_its_end().and_then(|code| read(&rows, code)))
}

/// Those of an earlier run: the command appends.
fn forget(rows: &Path) {
    let _ = std::fs::remove_file(rows);
}

fn command(rows: &Path) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let words = ["hooks", "--duration", "100ms", "-o", "ndjson", "--output-file"].map(str::to_owned);
    [path(&sh::debug_bin("tracer"))].into_iter().chain(words).chain([path(rows)]).collect()
}

fn read(rows: &Path, code: i32) -> Result<()> {
    let text = std::fs::read_to_string(rows).with_context(|| format!("it ended with {code} and left no rows"))?;
    if code != 0 {
        bail!("it ended with {code}");
    }
    refused(&text)
}

fn refused(text: &str) -> Result<()> {
    let findings: Vec<Finding> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let tried = findings.iter().flat_map(|of| of.fields.tried.iter().map(move |tried| (of, tried)));
    let mut refused = tried.filter(|(_, tried)| tried.reason.contains("verifier"));
    match refused.next() {
        Some((of, tried)) => bail!("{} as {}: {}", of.check, tried.form, tried.reason),
        None if findings.is_empty() => bail!("it named no hook"),
        None => Ok(()),
    }
}

fn row(result: Result<()>) -> Row {
    let empty = String::new;
    Row {
        scenario: "hooks".to_owned(),
        label: Some(LINE.to_owned()),
        proxy: empty(),
        family: empty(),
        result: if result.is_ok() { Outcome::Pass } else { Outcome::Fail },
        reason: result.err().map(|error| format!("{error:#}")),
        said: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_verifier_refuses_is_a_failure() {
        let line = |reason: &str| {
            format!(r#"{{"check":"hooks/tcp_connect","fields":{{"tried":[{{"form":"fentry","reason":"{reason}"}}]}}}}"#)
        };
        assert!(refused(&line("tcp_connect: the kernel's verifier refuses the program")).is_err());
        assert!(refused(&line("no such tracepoint in this kernel")).is_ok() && refused("").is_err());
    }
}
