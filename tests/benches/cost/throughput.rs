//! How much slower short connections are with tracer, in alternating rounds with and without it, and how many events
//! the ring can carry.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tracer_tests::stats::Sample;

use super::report::{Row, Target, spread};
use super::stage::{Load, Made, Stage};
use super::subject::Subject;
use super::{PROBER, PROBER_HOOKS, Plan, UNTRACKED};

/// Pause before each round, so that the kernel can free namespaces and programs of the last one (RCU).
pub(super) const SETTLE: Duration = Duration::from_millis(300);

/// Rates by default, with hooks for probers only, and with `--all-connections`. A control compares rounds without tracer
/// in the same way: what it lacks to 1 is not tracer's.
pub(super) fn rates(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let mut load = steady_load(stage)?;
    let (without, control) = alternate(&mut load, plan, |load| without_tracer(load, plan))?;
    let control = ratios(control.iter(), &without, |made| made.per_second);
    let default = compare(stage, &mut load, plan, &[])?;
    let prober = stage.prober_in_cgroup()?;
    let alone = compare(stage, &mut load, plan, PROBER_HOOKS)?;
    drop(prober);
    let all = compare(stage, &mut load, plan, &["--all-connections"])?;
    Ok(vec![
        Row::new("connects/s without tracer / without it", control.median(), "")
            .detail(rounds(&control))
            .data(spread(&control)),
        default.rate_row("connects/s with / without tracer").target(Target::AtLeast(0.98)),
        default.cpu_row("the same by processor time of the connections"),
        default.records_row(),
        alone.rate_row("connects/s with / without, --prober-hooks --no-syscall-hooks").target(Target::AtLeast(0.99)),
        alone.cpu_row("the same by processor time of the connections"),
        all.rate_row("connects/s with / without, --all-connections"),
        all.cpu_row("the same by processor time of the connections"),
    ])
}

/// Alternating rounds: one more without tracer than with it.
struct Comparison {
    without: Vec<Made>,
    with: Vec<Round>,
}

/// One load for all rounds: its own start would be the largest difference between them. It is steady when its first
/// ports are used again.
pub(super) fn steady_load(stage: &Stage) -> Result<Load> {
    let load = stage.load(UNTRACKED, 3600.0)?;
    thread::sleep(Duration::from_secs(10));
    Ok(load)
}

/// Compares each round with tracer to the mean of the rounds before and after it, which are without tracer.
fn compare(stage: &Stage, load: &mut Load, plan: Plan, flags: &[&str]) -> Result<Comparison> {
    let (without, with) = alternate(load, plan, |load| with_tracer(stage, flags, || load.during(plan.seconds)))?;
    Ok(Comparison { without, with })
}

pub(super) fn alternate<R>(
    load: &mut Load,
    plan: Plan,
    mut round: impl FnMut(&mut Load) -> Result<R>,
) -> Result<(Vec<Made>, Vec<R>)> {
    let mut without = vec![without_tracer(load, plan)?];
    let mut with = Vec::new();
    for _ in 0..plan.rounds {
        with.push(round(load)?);
        without.push(without_tracer(load, plan)?);
    }
    Ok((without, with))
}

/// The ratio of each round to the mean of its neighbours, by some measure.
pub(super) fn ratios<'a>(
    with: impl Iterator<Item = &'a Made>,
    without: &[Made],
    measure: impl Fn(&Made) -> f64,
) -> Sample {
    let mean = |pair: &[Made]| f64::midpoint(measure(&pair[0]), measure(&pair[1]));
    Sample::new(with.zip(without.windows(2)).map(|(with, pair)| measure(with) / mean(pair)))
}

impl Comparison {
    fn ratios(&self, measure: impl Fn(&Made) -> f64) -> Sample {
        ratios(self.with.iter().map(|round| &round.made), &self.without, measure)
    }

    fn rate_row(&self, name: &str) -> Row {
        let ratios = self.ratios(|made| made.per_second);
        let with = Sample::new(self.with.iter().map(|round| round.made.per_second));
        let without = Sample::new(self.without.iter().map(|made| made.per_second));
        let cpu = Sample::new(self.with.iter().map(|round| round.cpu_share)).median();
        let detail = format!(
            "{}; {:.0} connects/s with, {:.0} without ({:.0} to {:.0}); tracer's own CPU {:.1} % of a core",
            rounds(&ratios),
            with.median(),
            without.median(),
            without.min(),
            without.max(),
            cpu * 100.0
        );
        let data = json!({"ratio": spread(&ratios), "with_per_s": spread(&with), "without_per_s": spread(&without), "tracer_cpu_share": cpu});
        Row::new(name, ratios.median(), "").detail(detail).data(data)
    }

    /// The ratio by processor time, which other load on the machine hardly changes.
    fn cpu_row(&self, name: &str) -> Row {
        let ratios = self.ratios(|made| 1.0 / made.cpu_us);
        let with = Sample::new(self.with.iter().map(|round| round.made.cpu_us));
        let without = Sample::new(self.without.iter().map(|made| made.cpu_us));
        let detail = format!("{}; {:.2} us with, {:.2} without", rounds(&ratios), with.median(), without.median());
        let data = json!({"ratio": spread(&ratios), "with_us": spread(&with), "without_us": spread(&without)});
        Row::new(name, ratios.median(), "").detail(detail).data(data)
    }

    fn records_row(&self) -> Row {
        let each = self.with.iter().map(|round| round.events / round.made.connections);
        let row = Row::new("ring records per untracked connection", Sample::new(each).median(), "");
        row.target(Target::Below(0.001)).detail("median round: what else happens on the machine is in it")
    }
}

pub(super) fn rounds(ratios: &Sample) -> String {
    let [low, high] = [0.25, 0.75].map(|share| ratios.quantile(share));
    let (min, max) = (ratios.min(), ratios.max());
    format!("median of {} rounds, half of them {low:.3} to {high:.3}, all {min:.3} to {max:.3}", ratios.len())
}

fn without_tracer(load: &mut Load, plan: Plan) -> Result<Made> {
    thread::sleep(SETTLE);
    load.during(plan.seconds)
}

/// One round with tracer.
struct Round {
    made: Made,
    events: f64,
    lost: f64,
    cpu_share: f64,
}

fn with_tracer(stage: &Stage, flags: &[&str], load: impl FnOnce() -> Result<Made>) -> Result<Round> {
    let tracer = Subject::start(stage, "attach", flags)?;
    thread::sleep(SETTLE);
    let before = tracer.cpu_seconds()?;
    let made = load()?;
    let cpu = tracer.cpu_seconds()? - before;
    let records = tracer.stop()?;
    let stop = &records.last().context("the stop record")?.record;
    let number = |key: &str| stop[key].as_f64().with_context(|| format!("{key} of the stop record"));
    Ok(Round { made, events: number("events")?, lost: number("lost_events")?, cpu_share: cpu / made.seconds })
}

/// Measures events of a prober that connects as fast as it can, and of all connections.
pub(super) fn events(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let plan = Plan { seconds: 3.0 * plan.seconds, ..plan };
    let cases: [(&str, &str, &[&str]); 2] =
        [("a prober's connections", PROBER, &[]), ("--all-connections", UNTRACKED, &["--all-connections"])];
    let mut rows = Vec::new();
    for (name, comm, flags) in cases {
        let rounds: Vec<Round> = (0..3)
            .map(|_| with_tracer(stage, flags, || stage.load(comm, plan.seconds)?.finish()))
            .collect::<Result<_>>()?;
        rows.extend(event_rows(name, &rounds));
    }
    Ok(rows)
}

fn event_rows(name: &str, rounds: &[Round]) -> [Row; 2] {
    let rates = Sample::new(rounds.iter().map(|r| r.events / r.made.seconds));
    let lost: f64 = rounds.iter().map(|r| r.lost).sum();
    let events: f64 = rounds.iter().map(|r| r.events).sum();
    let connections: f64 = rounds.iter().map(|r| r.made.connections).sum();
    let cpu = Sample::new(rounds.iter().map(|r| r.cpu_share)).median();
    let per_second = Sample::new(rounds.iter().map(|r| r.made.per_second)).median();
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
