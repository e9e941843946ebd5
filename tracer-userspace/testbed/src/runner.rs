//! Runs scenarios, on a shared node or on one of their own, with or without a tracer beside it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use tracer_model::record::{Body, Record};

use crate::node::TestNode;
use crate::options::Options;
use crate::prober::Prober;
use crate::row::{Done, Row, RowOutcome};
use crate::scenario::{Fixture, Node, Scenario, Until};
use crate::watcher::{self, Session, Tracer, whole};

/// What beside the world is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Settings.
    pub options: Options,
    /// The tracer under test; without one only the failures themselves are checked.
    pub tracer: Option<Tracer>,
    /// Where recordings go.
    pub record: Option<PathBuf>,
}

/// Runs them all; `tell` hears of each as it is over.
pub fn run(plan: &Plan, scenarios: &[Scenario], tell: &mut dyn FnMut(&Row)) -> Vec<Row> {
    let alone = |s: &&Scenario| s.node == Node::Own || plan.record.is_some();
    let (own, shared): (Vec<&Scenario>, Vec<&Scenario>) = scenarios.iter().partition(alone);
    let mut rows = Vec::new();
    if !shared.is_empty() {
        rows.extend(together(plan, &shared, tell).unwrap_or_else(|error| none_of(&shared, &error, tell)));
    }
    for scenario in own {
        let row = by_itself(plan, scenario);
        tell(&row);
        rows.push(row);
    }
    rows
}

/// One node, one tracer, one scenario after the other.
fn together(plan: &Plan, scenarios: &[&Scenario], tell: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
    let mut node = TestNode::new("shared")?;
    let mut prober = Prober::start(&node.node, &plan.options)?;
    let tracer = plan.tracer.as_ref();
    let session = tracer.map(|t| Session::attach(t, plan.options.patience)).transpose()?;
    let mut rows = Vec::new();
    for scenario in scenarios {
        let row = row(scenario, |row| {
            let hear = |done: &mut Until<'_>| heard(session.as_ref(), plan, done);
            let played = play(plan, scenario, (&mut node, &mut prober), &mut row.done, &mut || Ok(()), &hear);
            // A pod outlives the verdicts about it: what the tracer reads in its namespace must still be there.
            let settled = match &session {
                Some(session) => settle(session, row, &plan.options),
                None => Ok(()),
            };
            node.clear()?;
            played.and(settled)
        });
        tell(&row);
        rows.push(row);
    }
    match session.map(Session::stop) {
        Some(Ok(records)) => hold_to_the_end(&records, &mut rows, tell),
        Some(Err(error)) => spoil(&format!("{error:#}"), &mut rows, tell),
        None => {}
    }
    Ok(rows)
}

/// The node or the tracer did not even start.
fn none_of(scenarios: &[&Scenario], error: &anyhow::Error, tell: &mut dyn FnMut(&Row)) -> Vec<Row> {
    let fail = |scenario: &&Scenario| {
        let row = row(scenario, |_| bail!("{error:#}"));
        tell(&row);
        row
    };
    scenarios.iter().map(fail).collect()
}

/// What the tracer reported later counts, too.
fn hold_to_the_end(records: &[Record], rows: &mut [Row], tell: &mut dyn FnMut(&Row)) {
    for row in rows {
        row.hear(records);
        if let Some(why) = row.done.fault(records).filter(|_| row.result == RowOutcome::Pass) {
            row.fail(format!("at the end: {why}"));
            tell(row);
        }
    }
}

/// The tracer did not end as it must: a row of its own says so, for it is no scenario's that can be played once more.
fn spoil(why: &str, rows: &mut Vec<Row>, tell: &mut dyn FnMut(&Row)) {
    let Some(mut row) = rows.last().cloned() else { return };
    row.scenario = "the tracer beside them".to_owned();
    row.reported.clear();
    row.fail(why.to_owned());
    tell(&row);
    rows.push(row);
}

/// A node and a tracer for one scenario.
fn by_itself(plan: &Plan, scenario: &Scenario) -> Row {
    row(scenario, |row| {
        let mut node = TestNode::new("own")?;
        let mut prober = Prober::start(&node.node, &plan.options)?;
        let session = RefCell::new(None);
        let mut watch = || {
            if session.borrow().is_none() {
                session.replace(start(plan, scenario)?);
            }
            Ok(())
        };
        let hear = |done: &mut Until<'_>| heard(session.borrow().as_ref(), plan, done);
        if scenario.node == Node::Shared {
            watch()?;
        }
        let played = play(plan, scenario, (&mut node, &mut prober), &mut row.done, &mut watch, &hear);
        played.and(match session.into_inner() {
            Some(session) => finish(plan, scenario, session, row),
            None if plan.tracer.is_none() => Ok(()),
            None => Err(anyhow!("the scenario ended before any tracer watched")),
        })
    })
}

fn heard(session: Option<&Session>, plan: &Plan, done: &mut Until<'_>) -> bool {
    session.is_none_or(|session| session.wait(plan.options.verdict_patience, done))
}

fn start(plan: &Plan, scenario: &Scenario) -> Result<Option<Session>> {
    let Some(tracer) = &plan.tracer else { return Ok(None) };
    let tracer = &Tracer { tiny_ring: scenario.tiny_ring, ..tracer.clone() };
    let patience = plan.options.patience;
    let Some(dir) = &plan.record else { return Session::attach(tracer, patience).map(Some) };
    let file = recording(dir, scenario);
    // The tracer writes over nothing.
    let _ = fs::remove_file(&file);
    Session::record(tracer, &file, patience).map(Some)
}

fn recording(dir: &Path, scenario: &Scenario) -> PathBuf {
    dir.join(format!("{}.observations.ndjson", scenario.name))
}

/// Waits for what is due, ends the tracer, looks at everything it reported.
fn finish(plan: &Plan, scenario: &Scenario, session: Session, row: &mut Row) -> Result<()> {
    let Some(dir) = &plan.record else {
        settle(&session, row, &plan.options)?;
        return met(row, &session.stop()?);
    };
    session.wait(plan.options.verdict_patience, |records| row.done.fault(records).is_none());
    let live = session.stop()?;
    let tracer = plan.tracer.as_ref().context("a recording without tracer")?;
    let replayed = watcher::replay(&tracer.program, &recording(dir, scenario))?;
    whole(&replayed)?;
    keep(&dir.join(format!("{}.records.ndjson", scenario.name)), &replayed)?;
    keep(&dir.join(format!("{}.live.ndjson", scenario.name)), &live)?;
    met(row, &replayed)?;
    let (live, replayed) = (gist(&live), gist(&replayed));
    if live != replayed {
        bail!("the replay differs: live {live:?}, replayed {replayed:?}");
    }
    Ok(())
}

fn keep(path: &Path, records: &[Record]) -> Result<()> {
    let lines: Vec<String> = records.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    fs::write(path, lines.join("\n") + "\n").with_context(|| format!("write {}", path.display()))
}

/// What must be the same live and in a replay.
fn gist(records: &[Record]) -> Vec<String> {
    let verdicts = records.iter().filter_map(|r| match &r.body {
        Body::Verdict(v) => Some(v),
        _ => None,
    });
    verdicts.map(|v| format!("{} {:?} {:?} {:?}", v.verdict.cause.name(), v.verdict.confidence, v.src, v.dst)).collect()
}

fn settle(session: &Session, row: &mut Row, options: &Options) -> Result<()> {
    let met = session.wait(options.verdict_patience, |records| row.done.fault(records).is_none());
    let records = session.records();
    row.hear(&records);
    let Some(why) = row.done.fault(&records).filter(|_| !met) else { return Ok(()) };
    let trouble = session.trouble();
    if trouble.is_empty() { bail!("{why}") } else { bail!("{why} (the tracer: {trouble})") }
}

fn met(row: &mut Row, records: &[Record]) -> Result<()> {
    row.hear(records);
    row.done.fault(records).map_or(Ok(()), |why| bail!("{why}"))
}

/// Plays a scenario: the failure itself must be what it should. What was done up to there is kept.
fn play(
    plan: &Plan,
    scenario: &Scenario,
    (node, prober): (&mut TestNode, &mut Prober),
    done: &mut Done,
    watch: &mut dyn FnMut() -> Result<()>,
    hear: &dyn Fn(&mut Until<'_>) -> bool,
) -> Result<()> {
    let mut fixture = Fixture {
        options: &plan.options,
        node,
        prober,
        cause: scenario.cause,
        family: scenario.family,
        watch,
        hear,
        suspect: None,
        also: scenario.also,
        mentioned: Vec::new(),
        helpers: Vec::new(),
        done,
    };
    (scenario.play)(&mut fixture)
}

/// Times it and makes a row of it.
fn row(scenario: &Scenario, work: impl FnOnce(&mut Row) -> Result<()>) -> Row {
    let began = Instant::now();
    let mut row = Row::new(scenario);
    if let Some(what) = scenario.needs.iter().find_map(|n| n.lacking()) {
        row.result = RowOutcome::Cannot;
        row.reason = Some(what);
    } else if let Err(error) = work(&mut row) {
        row.fail(format!("{error:#}"));
    } else if !row.done.measured.is_empty() {
        row.reason = Some(row.done.measured.join("; "));
    }
    row.ms = began.elapsed().as_millis() as u64;
    row
}
