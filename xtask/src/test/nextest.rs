//! Runs the tests of the workspace with cargo-nextest. The tests that need root run only as root.

use std::fs;

use anyhow::{Context as _, Result};

use super::report::Report;
use crate::packages;
use crate::sh::{self, regex};

/// The profile of `.config/nextest.toml` that continues after a failure, retries, and writes [`JUNIT`].
const PROFILE: &str = "ci";
/// The path of the results: below the root, also with another target directory (nextest's `store.dir`).
const JUNIT: &str = "target/nextest/ci/junit.xml";

pub(super) fn run(report: &mut Report) -> Result<()> {
    let root = nix::unistd::geteuid().is_root();
    let junit = sh::root().join(JUNIT);
    let _ = fs::remove_file(&junit);
    let which = if root { "all" } else { "default" };
    let mut tests = nextest(&["run", "--profile", PROFILE, "--no-tests", "fail", "--run-ignored", which]);
    tests.envs(packages::test_packages().ok().map(|place| ("TRACER_TEST_PACKAGES", place)));
    let ended = tests.status().context("cannot start cargo nextest")?;
    let failed = report.failed;
    count(&fs::read_to_string(&junit).with_context(|| format!("{}: {ended}", junit.display()))?, report);
    if !ended.success() && report.failed == failed {
        println!("FAIL   cargo nextest ended with {ended}");
        report.failed += 1;
    }
    if !root {
        let ignored = sh::capture(&mut nextest(&["list", "--run-ignored", "only", "--message-format", "oneline"]))?;
        eprintln!("xtask: {} tests need root or more than a minute: skipped", ignored.lines().count());
        report.skipped += ignored.lines().count();
    }
    Ok(())
}

fn nextest(words: &[&str]) -> std::process::Command {
    let mut command = sh::cargo(&["nextest"]);
    command.args(words).arg("--workspace");
    command
}

fn count(junit: &str, report: &mut Report) {
    let failed = regex("<(?:failure|error)[ >]").find_iter(junit).count();
    report.failed += failed;
    report.passed += junit.matches("<testcase ").count() - failed;
    for test in regex(r#"<testcase name="([^"]*)"[^>]*>\s*<flaky\w+[^>]* message="([^"]*)"#).captures_iter(junit) {
        report.add_flaky(test[1].to_owned(), &test[2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_junit_file_is_counted() {
        let junit = r#"<testsuites name="nextest-run" tests="3" failures="1">
        <testcase name="a" classname="tracer" time="0.1">
        </testcase>
        <testcase name="b" classname="tracer" time="0.1">
            <flakyFailure time="1" message="thread &apos;b&apos; panicked" type="test failure"><system-err>&lt;failure</system-err></flakyFailure>
        </testcase>
        <testcase name="c" classname="tracer" time="0.1">
            <failure message="no" type="test failure"/>
        </testcase>"#;
        let mut report = Report::default();
        count(junit, &mut report);
        assert_eq!((report.passed, report.failed), (2, 1));
        assert_eq!(report.flaky, [("b".to_owned(), "thread &apos;b&apos; panicked".to_owned())]);
    }
}
