//! Runs `tracer selftest` as a user does. It prints its own table.

use std::time::Duration;

use anyhow::Result;

use super::TestArgs;
use super::report::Report;
use crate::sh;
use crate::vm::Place;

/// Runs it on one kernel. Retries once, because a wait can be too short on a busy machine.
pub(super) fn run(args: &TestArgs, place: Place, report: &mut Report) -> Result<()> {
    let test = format!("tracer selftest on {}", place.heading()?);
    let play = || {
        let words = [sh::debug_bin("tracer").display().to_string(), "selftest".to_owned()].to_vec();
        sh::step(&test, || place.run(vec![words], Duration::from_secs(args.minutes * 60), true))
    };
    let first = play()?;
    if first == 0 || play()? == 0 {
        report.passed += 1;
    } else {
        println!("FAIL   {test}");
        report.failed += 1;
        return Ok(());
    }
    if first != 0 {
        report.add_flaky(test.clone(), &format!("exit code {first}"));
    }
    Ok(())
}
