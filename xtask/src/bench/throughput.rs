//! What short connections lose to the tracer, round by round with and without it; and how many
//! events the ring carries.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::report::{Row, Target, spread};
use super::stage::Stage;
use super::stats::Sample;
use super::subject::Subject;
use super::{FOREIGN, PROBER, Plan, THREADS};

/// Before each round: what the last one left (namespaces, programs freed by RCU) is over.
const SETTLE: Duration = Duration::from_millis(300);

/// Rates by default and with `--all-connections`.
pub(super) fn rates(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let warm_up = Plan { seconds: 1.0, ..plan };
    bare(stage, warm_up)?;
    let default = compare(stage, plan, false)?;
    let all = compare(stage, plan, true)?;
    Ok(vec![
        default.row("connects/s with / without tracer").target(Target::AtLeast(0.98)),
        default.records_row(),
        all.row("the same, --all-connections"),
    ])
}

/// Interleaved rounds.
struct Comparison {
    ratios: Vec<f64>,
    without: Vec<f64>,
    with: Vec<f64>,
    records_per_connection: Vec<f64>,
    cpu_share: Vec<f64>,
}

/// A B A B … A: each round with the tracer is held against the mean of its neighbours without.
fn compare(stage: &Stage, plan: Plan, all_connections: bool) -> Result<Comparison> {
    let mut without = vec![bare(stage, plan)?];
    let (mut with, mut records_per_connection, mut cpu_share) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let round = traced(stage, plan, FOREIGN, all_connections)?;
        with.push(round.per_second);
        records_per_connection.push(round.events / round.connections);
        cpu_share.push(round.cpu_share);
        without.push(bare(stage, plan)?);
    }
    let ratios = with.iter().zip(without.windows(2)).map(|(with, pair)| with / f64::midpoint(pair[0], pair[1]));
    Ok(Comparison { ratios: ratios.collect(), without, with, records_per_connection, cpu_share })
}

impl Comparison {
    fn row(&self, name: &str) -> Row {
        let sample = |values: &[f64]| Sample::new(values.iter().copied());
        let (ratios, without, with) = (sample(&self.ratios), sample(&self.without), sample(&self.with));
        let cpu = sample(&self.cpu_share).median();
        let detail = format!(
            "median of {} rounds, {:.3} to {:.3}; {:.0} connects/s with, {:.0} without ({:.0} to {:.0}); tracer's own CPU {:.1} % of a core",
            ratios.len(),
            ratios.min(),
            ratios.max(),
            with.median(),
            without.median(),
            without.min(),
            without.max(),
            cpu * 100.0
        );
        let data = json!({"ratios": self.ratios, "with_per_s": self.with, "without_per_s": self.without, "tracer_cpu_share": self.cpu_share});
        Row::new(name, ratios.median(), "").detail(detail).data(data)
    }

    fn records_row(&self) -> Row {
        let worst = Sample::new(self.records_per_connection.iter().copied()).max();
        Row::new("ring records per foreign connection", worst, "").target(Target::Below(0.001)).detail("worst round")
    }
}

fn bare(stage: &Stage, plan: Plan) -> Result<f64> {
    thread::sleep(SETTLE);
    Ok(stage.load(FOREIGN, THREADS, plan.seconds)?.finish()?.per_second)
}

/// One round with the tracer.
struct Round {
    connections: f64,
    seconds: f64,
    per_second: f64,
    events: f64,
    lost: f64,
    cpu_share: f64,
}

fn traced(stage: &Stage, plan: Plan, comm: &str, all_connections: bool) -> Result<Round> {
    let tracer = Subject::start(stage, "attach", all_connections)?;
    thread::sleep(SETTLE);
    let before = tracer.cpu_seconds()?;
    let made = stage.load(comm, THREADS, plan.seconds)?.finish()?;
    let cpu = tracer.cpu_seconds()? - before;
    let records = tracer.stop()?;
    let stop = &records.last().context("the stop record")?.record;
    let number = |key: &str| stop[key].as_f64().with_context(|| format!("{key} of the stop record"));
    Ok(Round {
        connections: made.connections,
        seconds: made.seconds,
        per_second: made.per_second,
        events: number("events")?,
        lost: number("lost_events")?,
        cpu_share: cpu / made.seconds,
    })
}

/// Events of a prober that connects as fast as it can, and of all connections.
pub(super) fn events(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let cases = [("a prober's connections", PROBER, false), ("--all-connections", FOREIGN, true)];
    let mut rows = Vec::new();
    for (name, comm, all) in cases {
        let rounds: Vec<Round> = (0..3).map(|_| traced(stage, plan, comm, all)).collect::<Result<_>>()?;
        rows.extend(event_rows(name, &rounds));
    }
    Ok(rows)
}

fn event_rows(name: &str, rounds: &[Round]) -> [Row; 2] {
    let rates = Sample::new(rounds.iter().map(|r| r.events / r.seconds));
    let lost: f64 = rounds.iter().map(|r| r.lost).sum();
    let events: f64 = rounds.iter().map(|r| r.events).sum();
    let connections: f64 = rounds.iter().map(|r| r.connections).sum();
    let cpu = Sample::new(rounds.iter().map(|r| r.cpu_share)).median();
    let per_second = Sample::new(rounds.iter().map(|r| r.per_second)).median();
    let detail = format!(
        "{:.1} events per connection, {per_second:.0} connects/s; tracer's own CPU {:.0} % of a core",
        events / connections,
        cpu * 100.0
    );
    [
        Row::new(format!("events/s, {name}"), rates.median(), "/s").detail(detail).data(spread(&rates)),
        Row::new(format!("events lost, {name}"), lost, "")
            .target(Target::Below(1.0))
            .detail(format!("of {:.0}", events + lost)),
    ]
}
