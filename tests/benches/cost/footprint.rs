//! The time from start to attached, and memory, idle and under load.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;
use tracer_tests::stats::Sample;

use super::report::{Row, Target, spread};
use super::stage::{Prober, REFUSED, Stage};
use super::subject::{Subject, memory_of};
use super::{PROBER, Plan, UNTRACKED};

/// The target of anonymous memory without failures, MiB.
const IDLE: f64 = 4.0;
/// The same with 200 failing attempts a second: more than a full node has.
const FAILING: f64 = 16.0;
/// The target of the start, milliseconds.
const START: f64 = 150.0;

pub(super) fn rows(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let mut rows = vec![starts(stage, plan)?];
    rows.extend(memory(stage, plan)?);
    Ok(rows)
}

fn starts(stage: &Stage, plan: Plan) -> Result<Row> {
    let (mut took, mut worked) = (Vec::new(), Vec::new());
    let mut hooks = [0, 0];
    for _ in 0..plan.starts {
        let tracer = Subject::start(stage, "attach", &[])?;
        took.push(tracer.attached_after.as_secs_f64() * 1e3);
        worked.push(tracer.cpu_seconds()? * 1e3);
        hooks = ["hooks", "missing_hooks"].map(|key| tracer.start[key].as_array().map_or(0, Vec::len));
        tracer.stop()?;
    }
    let took = Sample::new(took);
    let [attached, missing] = hooks;
    let detail = format!(
        "median of {} starts, {:.0} to {:.0}; {:.0} ms of processor time; {attached} hooks attached, {missing} missing",
        took.len(),
        took.min(),
        took.max(),
        Sample::new(worked).median()
    );
    let row = Row::new("start to attached", took.median(), "ms").target(Target::Below(START));
    Ok(row.detail(detail).data(spread(&took)))
}

/// The daemon's memory: idle, with untracked connections, with failing probes, and with a prober at full speed.
fn memory(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let tracer = Subject::start(stage, "run", &[])?;
    thread::sleep(Duration::from_secs(3));
    let idle = Memory::of(&tracer)?;
    let untracked = under_load(stage, plan, &tracer, UNTRACKED)?;
    let probes = probing(stage, plan, &tracer)?;
    let flood = under_load(stage, plan, &tracer, PROBER)?;
    tracer.stop()?;
    Ok(vec![
        idle.row("anonymous memory, idle").target(Target::Below(IDLE)),
        untracked.row("anonymous memory, untracked connections at full speed").target(Target::Below(IDLE)),
        probes.row("anonymous memory, those and 200 failing attempts/s").target(Target::Below(FAILING)),
        // A full node has a few hundredths of these attempts, so there is no target.
        flood.row("anonymous memory, prober connects at full speed"),
    ])
}

/// The memory during 200 failing attempts a second. A full node has 75 a second, and almost none fail.
fn probing(stage: &Stage, plan: Plan, tracer: &Subject) -> Result<Memory> {
    let mut prober = Prober::start(stage)?;
    let load = stage.load(UNTRACKED, 60.0)?;
    prober.attempts(REFUSED, plan.attempts, Duration::from_millis(5))?;
    let memory = Memory::of(tracer);
    drop(load);
    memory
}

fn under_load(stage: &Stage, plan: Plan, tracer: &Subject, comm: &str) -> Result<Memory> {
    let load = stage.load(comm, plan.seconds)?;
    let mut worst: Option<Memory> = None;
    for _ in 0..(plan.seconds * 10.0) as usize {
        thread::sleep(Duration::from_millis(100));
        let now = Memory::of(tracer)?;
        worst = worst.filter(|w| w.resident >= now.resident).or(Some(now));
    }
    load.finish()?;
    let Some(worst) = worst else { bail!("the load was too short to measure memory") };
    Ok(worst)
}

/// MiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Memory {
    resident: f64,
    peak: f64,
    anonymous: f64,
    file: f64,
    shared: f64,
}

impl Memory {
    pub(super) fn of(tracer: &Subject) -> Result<Self> {
        let mib = |field: &str| memory_of(tracer.pid(), field);
        Ok(Self {
            resident: mib("VmRSS")?,
            peak: mib("VmHWM")?,
            anonymous: mib("RssAnon")?,
            file: mib("RssFile")?,
            shared: mib("RssShmem")?,
        })
    }

    pub(super) fn row(self, name: &str) -> Row {
        let detail = format!(
            "file and ring {:.1}, shared {:.1}, together {:.1}; peak since its start {:.1}",
            self.file, self.shared, self.resident, self.peak
        );
        Row::new(name, self.anonymous, "MiB").detail(detail).data(json!(self))
    }
}
