//! Runs scenarios on a shared node or on their own node, with a tracer.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use tracer_model::record::{Body, Record};

use crate::api;
use crate::check::Done;
use crate::node::TestNode;
use crate::options::Options;
use crate::prober::Prober;
use crate::row::{Row, RowOutcome};
use crate::scenario::{Fixture, Knows, Node, Scenario, Until};
use crate::watcher::{self, Session, Tracer, check_complete};

/// How scenarios are run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub options: Options,
    /// The tracer under test.
    pub tracer: Tracer,
    /// Directory for recordings.
    pub record: Option<PathBuf>,
}

/// Runs the scenarios, and calls `on_row` after each. It is called again if a later record makes a scenario fail.
pub fn run(plan: &Plan, scenarios: &[Scenario], on_row: &mut dyn FnMut(&Row)) -> Vec<Row> {
    let alone = |s: &&Scenario| s.node == Node::Own || plan.record.is_some();
    let (own, shared): (Vec<&Scenario>, Vec<&Scenario>) = scenarios.iter().partition(alone);
    let mut rows = Vec::new();
    if !shared.is_empty() {
        rows.extend(run_shared(plan, &shared, on_row).unwrap_or_else(|error| fail_all(&shared, &error, on_row)));
    }
    for scenario in own {
        let row = run_alone(plan, scenario);
        on_row(&row);
        rows.push(row);
    }
    rows
}

/// Runs scenarios one after another on one node with one tracer.
fn run_shared(plan: &Plan, scenarios: &[&Scenario], on_row: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
    let mut node = TestNode::new("shared")?;
    let mut prober = Prober::start(&node.node, &plan.options)?;
    let session = Session::attach(&plan.tracer, plan.options.patience)?;
    let wait_for = |done: &mut Until<'_>| session.wait(plan.options.verdict_patience, done);
    let mut rows = Vec::new();
    for scenario in scenarios {
        let row = row(scenario, |row| {
            let ran = play(plan, scenario, (&mut node, &mut prober), &mut row.done, &mut || Ok(()), &wait_for);
            // The pods must exist until the verdicts are there, because the tracer inspects their namespaces.
            let settled = wait_for_verdicts(&session, row, &plan.options);
            node.clear()?;
            ran.and(settled)
        });
        on_row(&row);
        rows.push(row);
    }
    match session.stop() {
        Ok(records) => check_final_records(&records, &mut rows, on_row),
        Err(error) => add_tracer_failure(&format!("{error:#}"), &mut rows, on_row),
    }
    Ok(rows)
}

/// Fails all scenarios, because the node or the tracer did not start.
fn fail_all(scenarios: &[&Scenario], error: &anyhow::Error, on_row: &mut dyn FnMut(&Row)) -> Vec<Row> {
    let fail = |scenario: &&Scenario| {
        let row = row(scenario, |_| bail!("{error:#}"));
        on_row(&row);
        row
    };
    scenarios.iter().map(fail).collect()
}

/// Checks all scenarios again, because records that came after a scenario count, too.
fn check_final_records(records: &[Record], rows: &mut [Row], on_row: &mut dyn FnMut(&Row)) {
    for row in rows {
        row.update(records);
        if let Some(why) = row.done.fault(records).filter(|_| row.result == RowOutcome::Pass) {
            row.fail(format!("at the end: {why}"));
            on_row(row);
        }
    }
}

/// Adds a failed row for a tracer that did not end as it must. No scenario fails, because none would be run again for
/// it.
fn add_tracer_failure(why: &str, rows: &mut Vec<Row>, on_row: &mut dyn FnMut(&Row)) {
    let Some(mut row) = rows.last().cloned() else { return };
    row.scenario = "the tracer beside them".to_owned();
    row.reported.clear();
    row.fail(why.to_owned());
    on_row(&row);
    rows.push(row);
}

/// Runs a scenario on its own node with its own tracer.
fn run_alone(plan: &Plan, scenario: &Scenario) -> Row {
    row(scenario, |row| {
        let mut node = TestNode::new("own")?;
        let mut prober = Prober::start(&node.node, &plan.options)?;
        let session = RefCell::new(None);
        let mut watch = || {
            if session.borrow().is_none() {
                session.replace(Some(start(plan, scenario)?));
            }
            Ok(())
        };
        let wait_for = |done: &mut Until<'_>| {
            session.borrow().as_ref().is_none_or(|session| session.wait(plan.options.verdict_patience, done))
        };
        if scenario.node == Node::Shared {
            watch()?;
        }
        let ran = play(plan, scenario, (&mut node, &mut prober), &mut row.done, &mut watch, &wait_for);
        ran.and(match session.into_inner() {
            Some(session) => finish(plan, scenario, session, row),
            None => Err(anyhow!("the scenario ended before any tracer watched")),
        })
    })
}

fn start(plan: &Plan, scenario: &Scenario) -> Result<Session> {
    let tracer = &plan.tracer;
    let tracer = &match scenario.knows {
        Knows::Lists => tracer.clone(),
        Knows::ListsAndLosesEvents => Tracer { tiny_ring: true, ..tracer.clone() },
        Knows::Api => {
            let kubeconfig = api::serve(plan.options.scratch.join("kubeconfig.json"), api::slices)?;
            Tracer { services: None, kubeconfig: Some(kubeconfig), ..tracer.clone() }
        }
        Knows::Log => tracer.without_specs(&plan.options)?,
    };
    let patience = plan.options.patience;
    let Some(dir) = &plan.record else { return Session::attach(tracer, patience) };
    let file = recording(dir, scenario);
    // The tracer overwrites no file.
    let _ = fs::remove_file(&file);
    Session::record(tracer, &file, patience)
}

fn recording(dir: &Path, scenario: &Scenario) -> PathBuf {
    dir.join(format!("{}.observations.ndjson", scenario.name))
}

/// Waits for the expected verdicts, stops the tracer, and checks all its records. A recording must replay to the same.
fn finish(plan: &Plan, scenario: &Scenario, session: Session, row: &mut Row) -> Result<()> {
    let Some(dir) = &plan.record else {
        wait_for_verdicts(&session, row, &plan.options)?;
        return check(row, &session.stop()?);
    };
    session.wait(plan.options.verdict_patience, |records| row.done.fault(records).is_none());
    let live = session.stop()?;
    let replayed = watcher::replay(&plan.tracer.program, &recording(dir, scenario))?;
    check_complete(&replayed)?;
    write_lines(&dir.join(format!("{}.records.ndjson", scenario.name)), &replayed)?;
    write_lines(&dir.join(format!("{}.live.ndjson", scenario.name)), &live)?;
    check(row, &replayed)?;
    let (live, replayed) = (verdict_lines(&live), verdict_lines(&replayed));
    if live != replayed {
        bail!("the replay differs: live {live:?}, replayed {replayed:?}");
    }
    Ok(())
}

/// Writes one JSON object a line.
pub fn write_lines<T: Serialize>(path: &Path, all: &[T]) -> Result<()> {
    let lines: Vec<String> = all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    fs::write(path, lines.join("\n") + "\n").with_context(|| format!("write {}", path.display()))
}

/// The parts of all verdicts that must be the same live and in a replay.
fn verdict_lines(records: &[Record]) -> Vec<String> {
    let verdicts = records.iter().filter_map(|r| match &r.body {
        Body::Verdict(v) => Some(v),
        _ => None,
    });
    verdicts.map(|v| format!("{} {:?} {:?} {:?}", v.verdict.cause.name(), v.verdict.confidence, v.src, v.dst)).collect()
}

/// Waits until the records meet all expectations of the scenario.
fn wait_for_verdicts(session: &Session, row: &mut Row, options: &Options) -> Result<()> {
    let met = session.wait(options.verdict_patience, |records| row.done.fault(records).is_none());
    let records = session.records();
    row.update(&records);
    let Some(why) = row.done.fault(&records).filter(|_| !met) else { return Ok(()) };
    let trouble = session.trouble();
    if trouble.is_empty() { bail!("{why}") } else { bail!("{why} (the tracer: {trouble})") }
}

fn check(row: &mut Row, records: &[Record]) -> Result<()> {
    row.update(records);
    row.done.fault(records).map_or(Ok(()), |why| bail!("{why}"))
}

/// Runs the function of a scenario. It fails if the prober does not see the intended failure. `done` is filled in any
/// case.
fn play(
    plan: &Plan,
    scenario: &Scenario,
    (node, prober): (&mut TestNode, &mut Prober),
    done: &mut Done,
    watch: &mut dyn FnMut() -> Result<()>,
    wait_for: &dyn Fn(&mut Until<'_>) -> bool,
) -> Result<()> {
    let mut fixture = Fixture {
        options: &plan.options,
        node,
        prober,
        cause: scenario.cause,
        family: scenario.family,
        case: scenario.case,
        watch,
        wait_for,
        culprit: None,
        also: scenario.also,
        mentioned: Vec::new(),
        helpers: Vec::new(),
        last: None,
        done,
    };
    (scenario.play)(&mut fixture)?;
    // A recording ends with the failure.
    let fixes = plan.options.fixes && plan.record.is_none() && scenario.is_fixable;
    if fixes { fixture.apply_fix() } else { Ok(()) }
}

/// Makes the row of a scenario: runs `work`, unless something is missing on this machine.
fn row(scenario: &Scenario, work: impl FnOnce(&mut Row) -> Result<()>) -> Row {
    let (began, before) = (Instant::now(), processor_ticks());
    let mut row = Row::new(scenario);
    if let Some(what) = scenario.needs.iter().find_map(|n| n.lacking()) {
        row.result = RowOutcome::Cannot;
        row.reason = Some(what);
    } else if let Err(error) = work(&mut row) {
        let busy = before.zip(processor_ticks()).and_then(|(before, after)| describe_busy(before, after));
        row.was_busy = busy.is_some();
        row.fail(format!("{error:#}{}", busy.unwrap_or_default()));
    } else if !row.done.measured.is_empty() {
        row.reason = Some(row.done.measured.join("; "));
    }
    row.ms = began.elapsed().as_millis() as u64;
    row
}

/// Ticks of all processors since the start of the node.
#[derive(Clone, Copy)]
struct Ticks {
    idle: u64,
    all: u64,
}

fn processor_ticks() -> Option<Ticks> {
    parse_ticks(&fs::read_to_string("/proc/stat").ok()?)
}

/// Of the text of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq and steal.
fn parse_ticks(text: &str) -> Option<Ticks> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks = numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
    Some(Ticks { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.iter().sum() })
}

/// Follows the reason of a failure if hardly any processor was idle: tracer and the probes may have come too late.
/// Pressure (PSI) would not do: it also counts the scenarios that exhaust a quota.
fn describe_busy(before: Ticks, after: Ticks) -> Option<String> {
    const LEAST_PERCENT: u64 = 10;
    let all = after.all.saturating_sub(before.all);
    let idle = (after.idle.saturating_sub(before.idle) * 100).checked_div(all)?;
    (idle < LEAST_PERCENT).then(|| {
        format!(
            "; the node may be too busy for this test: its processors were idle in {idle} % of that time (/proc/stat)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_node_is_named_with_its_idle_time() {
        let at = |user: u64, idle: u64| {
            parse_ticks(&format!("cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\n")).expect("ticks")
        };
        let words = describe_busy(at(100, 900), at(297, 903)).expect("busy");
        assert!(words.ends_with("were idle in 1 % of that time (/proc/stat)"), "{words}");
        assert_eq!(describe_busy(at(100, 900), at(190, 910)), None);
        assert_eq!(describe_busy(at(100, 900), at(100, 900)), None, "no tick went by");
        assert!(parse_ticks("").is_none() && parse_ticks("cpu  1 2 3\n").is_none());
    }
}
