//! `cargo xtask test`: everything that can be tested, on this kernel and on others, and one matrix of the results.
//!
//! ```text
//! units      the workspace's own tests: no root, no kernel
//! scenarios  the failures, made on this kernel and in virtual machines
//! selftest   `tracer selftest` as a user runs it, on each of these kernels
//! hooks      `tracer hooks` there: a line of the self-test's table
//! replays    recordings of this kernel, analysed again without privileges
//! matrix     label by kernel, Service proxy and address family
//! confusion  what was made by what was said
//! results    what a run leaves, for the two tables to be printed again
//! ```

mod confusion;
mod hooks;
mod matrix;
mod replays;
mod results;
mod scenarios;
mod selftest;
mod table;
mod units;

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::vm::{RELEASES, Release, kernels, virtme};
use crate::{build, setup, sh};
pub(crate) use results::confusion;
use scenarios::Run;
pub(crate) use scenarios::{Outcome, Row, read as read_rows, second_chance};

/// What to test.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// No virtual machines
    #[arg(long, visible_alias = "no-vm")]
    host_only: bool,
    /// Only this kernel's virtual machine; repeatable
    #[arg(long = "kernel", value_name = "RELEASE", value_parser = kernels::find, conflicts_with = "host_only")]
    kernels: Vec<&'static Release>,
    /// Only scenarios whose name begins so; repeatable
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only make the failures, without a tracer beside them
    #[arg(long)]
    mechanism_only: bool,
    /// Record and replay one scenario of each label, proxy and family, not all of them
    #[arg(long)]
    few_recordings: bool,
    /// Virtual machines at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Minutes after which a virtual machine is ended
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// How many passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    /// Of those that passed, at the second try only.
    second: usize,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.second += other.second;
    }
}

/// The command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let begun = Instant::now();
    setup::ensure(if args.host_only { setup::Purpose::Here } else { setup::Purpose::Test })?;
    let releases = releases(args);
    let fetching = thread::spawn({
        let releases = releases.clone();
        move || fetch(&releases)
    });
    let mut tally = sh::step("unit tests", units::run)?;
    // Those that wait for what other processes do have the machine to themselves.
    fetching.join().map_err(|_| anyhow::anyhow!("fetching the kernels ended in a panic"))??;
    tally += sh::step("tests that need root", units::as_root)?;
    let soak = thread::spawn(units::soak);
    let built = build::programs();
    tally += soak.join().map_err(|_| anyhow::anyhow!("the longest test ended in a panic"))??;
    built?;
    tally += on_kernels(args, &releases)?;
    eprintln!("xtask: test: {:.0} s in all", begun.elapsed().as_secs_f64());
    println!("{} passed ({} of them at the second try), {} failed", tally.passed, tally.second, tally.failed);
    if tally.failed > 0 {
        bail!("{} tests failed", tally.failed);
    }
    Ok(())
}

/// The failures on this kernel and on those, and the tables of what came of them.
fn on_kernels(args: &Args, releases: &[&'static Release]) -> Result<Tally> {
    let (mut runs, mut selftests) = (vec![scenarios::on_host(args)?], Vec::new());
    if is_whole(args) {
        selftests.push(selftest::on_host()?);
    }
    let first = scenarios::in_machines(args, releases, in_machine);
    // One at a time, when all others are over: a second run is for what a busy machine spoilt.
    for (release, (run, selftest)) in releases.iter().zip(first) {
        runs.push(scenarios::again_in_machine(args, release, run));
        selftests.extend(selftest.map(|run| selftest::again_in_machine(args, release, run)));
    }
    results::keep(&runs)?;
    let mut tally = tally_of(&runs);
    // With the oldest kernel and the newest there is one for each.
    if is_whole(args) && releases.len() > 1 {
        tally.failed += scenarios::shown_nowhere(&runs);
    }
    tally += tally_of(&selftests);
    if !args.mechanism_only {
        tally += replays::run(args, &runs[0].rows)?;
    }
    if !selftests.is_empty() {
        matrix::print(matrix::SELFTEST, &selftests);
    }
    matrix::print(matrix::SCENARIOS, &runs);
    tally += results::confused(&runs);
    Ok(tally)
}

fn in_machine(args: &Args, release: &'static Release) -> (Run, Option<Run>) {
    let run = scenarios::in_machine(args, release);
    (run, is_whole(args).then(|| selftest::in_machine(args, release).and(hooks::in_machine(args, release))))
}

/// Not some scenarios alone: the self-test chooses its own.
const fn is_whole(args: &Args) -> bool {
    !args.mechanism_only && args.only.is_empty()
}

fn releases(args: &Args) -> Vec<&'static Release> {
    match (args.host_only, args.kernels.is_empty()) {
        (true, _) => Vec::new(),
        (false, true) => RELEASES.iter().collect(),
        (false, false) => args.kernels.clone(),
    }
}

/// Fetches what the machines need while the compiler is busy.
fn fetch(releases: &[&Release]) -> Result<()> {
    for release in releases {
        kernels::ensure(release, false)?;
    }
    if releases.is_empty() { Ok(()) } else { virtme::ensure().map(drop) }
}

fn tally_of(runs: &[Run]) -> Tally {
    let mut tally = Tally::default();
    for run in runs {
        tally += run.tally();
    }
    tally
}
