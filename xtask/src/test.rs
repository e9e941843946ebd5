//! `cargo xtask test`: runs all tests on this kernel and on others, and prints a matrix of the results.
//!
//! ```text
//! nextest    the tests of the workspace
//! scenarios  the scenarios on this kernel and in virtual machines
//! hooks      the doctor's check of the hooks on each kernel: the program types
//! selftest   `tracer selftest` as a user runs it
//! rows       the results of scenarios, retries, and wrong causes
//! matrix     cause by kernel, Service proxy and address family
//! report     the counts and the flaky tests of all parts
//! ```

mod hooks;
mod matrix;
mod nextest;
mod report;
mod rows;
mod scenarios;
mod selftest;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::vm::{Place, RELEASES, Release, kernels, virtme};
use crate::{build, setup, sh};
use report::Report;
use rows::{Outcome, Run};
use scenarios::Scenarios;

/// The kernel of the one virtual machine of a short run: the oldest supported one, because it differs most from this
/// machine's. It lacks tracepoints for RSTs and the reasons for drops, so tracer uses other programs there: fentry,
/// kprobes, raw tracepoints and cgroups.
const SMOKE: &str = "5.10";

/// What to test.
#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// In each virtual machine the scenarios with events that can differ by kernel
    #[arg(long, conflicts_with_all = ["host_only", "kernels"])]
    all: bool,
    /// Every scenario in each of the virtual machines, and the self-test
    #[arg(long)]
    every_scenario: bool,
    /// No virtual machines
    #[arg(long, visible_alias = "no-vm")]
    host_only: bool,
    /// Only this kernel's virtual machine; repeatable
    #[arg(long = "kernel", value_name = "RELEASE", value_parser = kernels::find, conflicts_with = "host_only")]
    kernels: Vec<&'static Release>,
    /// Only scenarios with this prefix, on all kernels chosen; repeatable
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Keep the observations of scenarios in tests/recordings, where it has none of that kernel
    #[arg(long)]
    record: bool,
    /// Virtual machines at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Minutes after which a virtual machine is ended
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

impl TestArgs {
    /// Whether all tests run, not only some scenarios. The self-test chooses its own scenarios.
    const fn is_whole(&self) -> bool {
        self.only.is_empty()
    }

    const fn suite(&self) -> &'static str {
        match (self.every_scenario, self.all || !self.kernels.is_empty()) {
            (true, _) => "all",
            (false, true) => "kernels",
            (false, false) => "smoke",
        }
    }

    fn releases(&self) -> Vec<&'static Release> {
        match (self.host_only, self.all, self.kernels.is_empty()) {
            (true, ..) => Vec::new(),
            (false, true, _) => RELEASES.iter().collect(),
            (false, false, false) => self.kernels.clone(),
            (false, false, true) => RELEASES.iter().filter(|release| release.name == SMOKE).collect(),
        }
    }
}

pub(crate) fn run(args: &TestArgs) -> Result<()> {
    let begun = Instant::now();
    setup::ensure(if args.host_only { setup::Purpose::Here } else { setup::Purpose::Test })?;
    let releases = args.releases();
    let fetching = thread::spawn({
        let releases = releases.clone();
        move || fetch(&releases)
    });
    let mut report = Report::default();
    if args.is_whole() {
        sh::step("the tests of the workspace", || nextest::run(&mut report))?;
    }
    build::programs()?;
    // A misspelt `--only` ends here, before a machine boots.
    Scenarios { place: Place::Here, suite: "all", args }.names()?;
    fetching.join().map_err(|_| anyhow::anyhow!("fetching the kernels ended in a panic"))??;
    on_kernels(args, &releases, &mut report)?;
    eprintln!("xtask: test: {:.0} s in all", begun.elapsed().as_secs_f64());
    report.end()
}

/// Fetches what the machines need while the compiler is busy.
fn fetch(releases: &[&Release]) -> Result<()> {
    for release in releases {
        kernels::ensure(release, false)?;
    }
    if releases.is_empty() { Ok(()) } else { virtme::ensure().map(drop) }
}

/// Runs the scenarios on this kernel and on the releases, and prints the tables of results.
fn on_kernels(args: &TestArgs, releases: &[&'static Release], report: &mut Report) -> Result<()> {
    let mut runs = Vec::new();
    let here = Scenarios { place: Place::Here, suite: "all", args };
    if nix::unistd::geteuid().is_root() {
        runs.push(here.complete(here.run()?)?);
        if args.is_whole() {
            selftest::run(args, Place::Here, report)?;
        }
    } else {
        let skipped = here.names()?.len();
        eprintln!("xtask: {skipped} scenarios on this kernel and the self-test need root: skipped");
        report.skipped += skipped;
    }
    let places = releases.iter().map(|release| Scenarios { place: Place::Machine(release), suite: args.suite(), args });
    let places: Vec<Scenarios<'_>> = places.collect();
    // Retries run one at a time after all others, because a busy machine may have caused the failure.
    for (place, run) in places.iter().zip(in_machines(&places, args.jobs)?) {
        runs.push(place.complete(run)?);
        if args.every_scenario && args.is_whole() {
            selftest::run(args, place.place, report)?;
        }
    }
    runs.iter().for_each(|run| run.report(report));
    // The oldest and the newest kernel together can show each cause.
    if args.is_whole() && releases.len() > 1 {
        report.failed += ran_nowhere(&runs, args.every_scenario);
    }
    print!("\n{}\n{}", matrix::text(&runs), rows::confusions(&runs));
    Ok(())
}

/// Runs scenarios in virtual machines, `jobs` at a time.
fn in_machines(places: &[Scenarios<'_>], jobs: usize) -> Result<Vec<Run>> {
    let queue: Mutex<VecDeque<_>> = Mutex::new(places.iter().enumerate().collect());
    let results = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let worker = || {
        while let Some((order, place)) = next() {
            let run = place.run();
            results.lock().unwrap_or_else(PoisonError::into_inner).push((order, run));
        }
    };
    thread::scope(|scope| (0..jobs.clamp(1, places.len().max(1))).for_each(|_| drop(scope.spawn(worker))));
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(order, _)| *order);
    results.into_iter().map(|(_, run)| run).collect()
}

/// How many causes, or scenarios, no kernel could run. Each of them must run on some kernel.
fn ran_nowhere(runs: &[Run], each_scenario: bool) -> usize {
    let with = |is_wanted: fn(Outcome) -> bool| -> BTreeSet<&str> {
        let rows = runs.iter().flat_map(|run| &run.rows).filter(|row| is_wanted(row.result));
        rows.filter_map(|row| if each_scenario { Some(row.scenario.as_str()) } else { row.cause.as_deref() }).collect()
    };
    let ran = with(|result| matches!(result, Outcome::Pass | Outcome::Fail));
    let lacking = with(|result| result == Outcome::Cannot);
    lacking.difference(&ran).inspect(|name| println!("FAIL   {name}: no kernel could run it")).count()
}

#[cfg(test)]
mod tests {
    use super::rows::Row;
    use super::*;

    #[test]
    fn causes_that_no_kernel_can_play_are_counted() {
        let row = |name: &str, result| Row { result, ..Row::failed(name, Some(name.to_uppercase()), "") };
        let run = |rows| Run::new("one".to_owned(), Ok(rows));
        let here = run(vec![row("a", Outcome::Cannot), row("b", Outcome::Cannot), row("c", Outcome::Pass)]);
        let there = run(vec![row("a", Outcome::Pass), row("b", Outcome::Cannot), row("c", Outcome::Cannot)]);
        let runs = [here, there];
        assert_eq!((ran_nowhere(&runs, true), ran_nowhere(&runs, false)), (1, 1));
        let other = Row { cause: Some("B".to_owned()), ..row("d", Outcome::Pass) };
        let runs = [runs.to_vec(), vec![run(vec![other])]].concat();
        assert_eq!((ran_nowhere(&runs, true), ran_nowhere(&runs, false)), (1, 0));
    }
}
