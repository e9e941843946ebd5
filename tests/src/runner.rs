//! Runs scenarios, on a shared node or on one of their own, with or without a tracer beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tracer::record::{Body, Record};

use crate::check::{self, Attempt, Standing, judge};
use crate::options::{Options, kernel};
use crate::prober::Prober;
use crate::scenario::{Node, Scenario, Stage};
use crate::watcher::{self, Session, Tracer, whole};
use crate::world::World;

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

/// How a scenario went.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario.
    pub scenario: String,
    /// The label it is about; absent: healthy.
    pub label: Option<String>,
    /// `v4` or `v6`.
    pub family: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// `pass`, `fail` or `cannot`.
    pub result: &'static str,
    /// Why, unless it passed.
    pub reason: Option<String>,
    /// How long it took.
    pub ms: u64,
    #[serde(skip)]
    done: Done,
}

impl Row {
    fn fail(&mut self, why: String) {
        self.result = "fail";
        self.reason = Some(why);
    }
}

/// What was done to the attempts of a scenario.
#[derive(Clone, Debug, Default)]
struct Done {
    attempts: Vec<Attempt>,
    quiet: Vec<Attempt>,
}

impl Done {
    /// The first claim that the records do not meet.
    fn fault(&self, records: &[Record]) -> Option<String> {
        let unmet = self.attempts.iter().find_map(|a| match judge(records, a) {
            Standing::Met => None,
            Standing::Unmet(why) => Some(why),
        });
        unmet.or_else(|| self.quiet.iter().find_map(|a| check::disturbance(records, a)))
    }
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
    let mut world = World::new("shared")?;
    let mut prober = Prober::start(&world.node, &plan.options)?;
    let tracer = plan.tracer.as_ref();
    let session = tracer.map(|t| Session::attach(t, plan.options.patience)).transpose()?;
    let mut rows = Vec::new();
    for scenario in scenarios {
        let row = row(scenario, || {
            let played = play(plan, scenario, &mut world, &mut prober, &mut || Ok(()));
            world.clear()?;
            let done = played?;
            if let Some(session) = &session {
                settle(session, &done, &plan.options)?;
            }
            Ok(done)
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
        let row = row(scenario, || bail!("{error:#}"));
        tell(&row);
        row
    };
    scenarios.iter().map(fail).collect()
}

/// What the tracer said later counts, too.
fn hold_to_the_end(records: &[Record], rows: &mut [Row], tell: &mut dyn FnMut(&Row)) {
    for row in rows.iter_mut().filter(|r| r.result == "pass") {
        if let Some(why) = row.done.fault(records) {
            row.fail(format!("at the end: {why}"));
            tell(row);
        }
    }
}

/// The tracer did not end as it must: the last of the rows says so.
fn spoil(why: &str, rows: &mut [Row], tell: &mut dyn FnMut(&Row)) {
    if let Some(row) = rows.last_mut() {
        row.fail(why.to_owned());
        tell(row);
    }
}

/// A node and a tracer for one scenario.
fn by_itself(plan: &Plan, scenario: &Scenario) -> Row {
    row(scenario, || {
        let mut world = World::new("own")?;
        let mut prober = Prober::start(&world.node, &plan.options)?;
        let mut session = None;
        let mut watch = || {
            if session.is_none() {
                session = start(plan, scenario)?;
            }
            Ok(())
        };
        if scenario.node == Node::Shared {
            watch()?;
        }
        let done = play(plan, scenario, &mut world, &mut prober, &mut watch)?;
        if let Some(session) = session {
            finish(plan, scenario, session, &done)?;
        }
        Ok(done)
    })
}

fn start(plan: &Plan, scenario: &Scenario) -> Result<Option<Session>> {
    let Some(tracer) = &plan.tracer else { return Ok(None) };
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

/// Waits for what is due, ends the tracer, looks at everything it said.
fn finish(plan: &Plan, scenario: &Scenario, session: Session, done: &Done) -> Result<()> {
    let Some(dir) = &plan.record else {
        settle(&session, done, &plan.options)?;
        return met(done, &session.stop()?);
    };
    session.wait(plan.options.verdict_patience, |records| done.fault(records).is_none());
    let live = session.stop()?;
    let tracer = plan.tracer.as_ref().context("a recording without tracer")?;
    let replayed = watcher::replay(&tracer.program, &recording(dir, scenario))?;
    whole(&replayed)?;
    let lines: Vec<String> = replayed.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    fs::write(dir.join(format!("{}.records.ndjson", scenario.name)), lines.join("\n") + "\n")?;
    met(done, &replayed)?;
    let (live, replayed) = (gist(&live), gist(&replayed));
    if !live.is_empty() && live != replayed {
        bail!("the replay differs: live {live:?}, replayed {replayed:?}");
    }
    Ok(())
}

/// What must be the same live and in a replay.
fn gist(records: &[Record]) -> Vec<String> {
    let verdicts = records.iter().filter_map(|r| match &r.body {
        Body::Verdict(v) => Some(v),
        _ => None,
    });
    verdicts
        .map(|v| format!("{} {:?} {:?} {:?}", check::name(v.verdict.label), v.verdict.confidence, v.src, v.dst))
        .collect()
}

fn settle(session: &Session, done: &Done, options: &Options) -> Result<()> {
    if session.wait(options.verdict_patience, |records| done.fault(records).is_none()) {
        return Ok(());
    }
    met(done, &session.records()).with_context(|| session.trouble())
}

fn met(done: &Done, records: &[Record]) -> Result<()> {
    done.fault(records).map_or(Ok(()), |why| bail!("{why}"))
}

/// Plays a scenario: the failure itself must be what it should.
fn play(
    plan: &Plan,
    scenario: &Scenario,
    world: &mut World,
    prober: &mut Prober,
    watch: &mut dyn FnMut() -> Result<()>,
) -> Result<Done> {
    let mut stage = Stage {
        options: &plan.options,
        world,
        prober,
        label: scenario.label,
        family: scenario.family,
        watch,
        suspect: None,
        attempts: Vec::new(),
        quiet: Vec::new(),
        helpers: Vec::new(),
    };
    (scenario.play)(&mut stage)?;
    Ok(Done { attempts: stage.attempts, quiet: stage.quiet })
}

/// Times it and makes a row of it.
fn row(scenario: &Scenario, work: impl FnOnce() -> Result<Done>) -> Row {
    let began = Instant::now();
    let lacking = scenario.needs.iter().find_map(|n| n.lacking());
    let (result, reason, done) = match lacking {
        Some(what) => ("cannot", Some(what), Done::default()),
        None => match work() {
            Ok(done) => ("pass", None, done),
            Err(error) => ("fail", Some(format!("{error:#}")), Done::default()),
        },
    };
    Row {
        scenario: scenario.name.to_owned(),
        label: scenario.label.map(check::name),
        family: scenario.family.name(),
        kernel: kernel(),
        result,
        reason,
        ms: began.elapsed().as_millis() as u64,
        done,
    }
}
