//! Runs the blocks of commands in the documentation. `commands.sh` says which commands run for real.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::pages;
use crate::deploy::text;
use crate::sh::{self, regex};
use crate::tracer;

/// A recording, and its records: the files that blocks read. Blocks make the others.
const RECORDING: &str = "tests/fixtures/loopback_down/any-v4/observations.ndjson";
const RECORDS: [&str; 4] = ["tracer.ndjson", "old.ndjson", "node-1.ndjson", "node-2.ndjson"];

pub(crate) fn check() -> Result<()> {
    tracer::build()?;
    let sandbox = Sandbox::new()?;
    for page in pages()? {
        let text = text(&sh::root().join(&page))?;
        for block in regex(r"(?ms)^ *```sh\n(.*?)^ *```").captures_iter(&text) {
            sandbox.run(&block[1]).with_context(|| format!("{page}:\n{}", &block[1]))?;
        }
    }
    let log = fs::read_to_string(sandbox.log())?;
    let count = |word| log.lines().filter(|line| *line == word).count();
    let (ran, parsed) = (count("ran"), count("parsed"));
    eprintln!("xtask: commands: {ran} of tracer and jq ran, {parsed} more of tracer and xtask were parsed");
    ensure!(ran > 25 && parsed > 60, "too few command lines were found");
    Ok(())
}

struct Sandbox(PathBuf);

impl Sandbox {
    fn new() -> Result<Self> {
        let folder = sh::target().join("check-commands");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        fs::copy(sh::root().join(RECORDING), folder.join("incident.ndjson"))?;
        let records = tracer::output(&["replay", RECORDING, "-o", "json"])?;
        RECORDS.iter().try_for_each(|name| fs::write(folder.join(name), &records))?;
        symlink(sh::debug_bin("tracer"), folder.join("kubectl-tracer"))?;
        symlink(crate::deploy::place(), folder.join("deploy"))?;
        Ok(Self(folder))
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// A POSIX shell parses a block, then bash runs it.
    fn run(&self, block: &str) -> Result<()> {
        sh::capture(sh::command("sh").args(["-nc", block]))?;
        ensure!(!regex(r">\s*/").is_match(block), "a block must not write outside of its folder");
        let mut bash = sh::command("bash");
        bash.current_dir(&self.0).args(["-c", include_str!("commands.sh"), "bash", block]).env_clear();
        bash.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("LOG", self.log());
        bash.env("TRACER", sh::debug_bin("tracer")).env("XTASK", std::env::current_exe()?);
        sh::capture(&mut bash).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a block without tracer's files.
    fn run(block: &str) -> Result<()> {
        let folder = std::env::temp_dir().join(format!("xtask-commands-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let result = Sandbox(folder.clone()).run(block);
        fs::remove_dir_all(folder)?;
        result
    }

    #[test]
    fn a_block_runs_filters_and_nothing_that_changes_the_machine() {
        assert!(run("kubectl get pods | sort > list && [ -s list ]\nip link set lo down  # a stand-in").is_ok());
        for wrong in ["echo 1 | jq .a.b", "reboot", "echo 1 > /proc/x", "if then"] {
            assert!(run(wrong).is_err(), "{wrong}");
        }
    }
}
