//! The workspace's own tests: units, properties and replays of the fixtures.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, Result};

use super::Tally;
use crate::{firewalls, sh};

/// Tests of the sources, of `doctor` and of `selftest` on namespaces that they make, of firewalls, `hooks` and the live line: they
/// need root, and `cargo test` leaves them out.
const AS_ROOT: &[&str] = &[
    "test",
    "--package",
    "tracer-userspace",
    "--test",
    "sources_live",
    "--test",
    "doctor_live",
    "--test",
    "firewalls_live",
    "--test",
    "hooks_live",
    "--test",
    "pretty",
    "--test",
    "selftest_live",
    "--no-fail-fast",
    "--",
    "--ignored",
    "--test-threads=1",
];

/// Tests of the daemon on this kernel, and of the kubelet's lines in a real journal: they need root, too.
const DAEMON: &[&str] = &[
    "test",
    "--package",
    "tracer-userspace",
    "--test",
    "run_live",
    "--test",
    "journal_live",
    "--no-fail-fast",
    "--",
    "--ignored",
    "--test-threads=1",
];

/// An hour of a node's traffic through the core.
const SOAK: &[&str] = &["test", "--package", "tracer-userspace", "--lib", "--", "--ignored", "an_hour_of_a_node"];

/// Runs those that need no root, but for the longest, also after one has failed.
pub(crate) fn run() -> Result<Tally> {
    sh::run(&mut sh::cargo(&["test", "--workspace", "--no-run"]))?;
    tests(&["test", "--workspace", "--no-fail-fast"])
}

/// Runs those that need root.
pub(crate) fn as_root() -> Result<Tally> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("xtask: the tests of tracer-userspace/tests/*_live.rs need root: left out");
        return Ok(Tally::default());
    }
    let mut tally = tests(AS_ROOT)?;
    tally += tests(DAEMON)?;
    Ok(tally)
}

/// The longest test: on one processor, and so beside the compiler.
pub(crate) fn soak() -> Result<Tally> {
    sh::step("an hour of a node's traffic", || tests(SOAK))
}

/// Runs `cargo` with these arguments, and counts.
fn tests(arguments: &[&str]) -> Result<Tally> {
    let mut tests = sh::cargo(arguments);
    tests.envs(firewalls::directory().ok().map(|place| ("TRACER_TEST_FIREWALLS", place)));
    let mut child = tests.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let mut tally = Tally::default();
    for line in BufReader::new(child.stdout.take().context("no output of cargo")?).lines().map_while(Result::ok) {
        tally += count(&line).unwrap_or_default();
        println!("{line}");
    }
    // A test program that was killed counts nothing: its exit code must count then.
    let ended_well = child.wait()?.success();
    // Nor may a list of names that no test has any more.
    if tally.failed == 0 && (!ended_well || tally.passed == 0) {
        println!("FAIL   cargo {}: {} passed", arguments.join(" "), tally.passed);
        tally.failed = 1;
    }
    Ok(tally)
}

/// The numbers in `test result: ok. 3 passed; 0 failed; ...`.
fn count(line: &str) -> Option<Tally> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        let part = numbers.split("; ").find_map(|part| part.strip_suffix(what))?;
        part.trim().parse().ok()
    };
    Some(Tally { passed: number("passed")?, failed: number("failed")?, second: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_test_program_is_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(count(line), Some(Tally { passed: 12, failed: 3, second: 0 }));
        assert_eq!(count("test a ... ok"), None);
    }
}
