//! The time from the event that decides (the record's time) to the verdict, measured twice: by tracer itself
//! (`timing.detected_after_ms`), and until the line has come through the pipe. It is measured idle, and while untracked
//! connections keep every core busy. A dropped SYN decides nothing while a retransmission may get through: the end of the
//! attempt does.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tracer_tests::stats::Sample;

use super::report::{Row, Target, spread};
use super::stage::{DROPPED, Prober, REFUSED, Stage};
use super::subject::{Line, Subject};
use super::{Plan, UNTRACKED};

/// The time between attempts on a full node: 250 pods with three probes each in ten seconds. Here all of them fail.
const PACE: Duration = Duration::from_micros(13_333);
/// The target, milliseconds.
const LIMIT: f64 = 5.0;

struct Failure {
    cause: &'static str,
    dst: SocketAddr,
    note: &'static str,
}

const FAILURES: [Failure; 2] = [
    Failure { cause: "connection_refused", dst: REFUSED, note: "" },
    Failure { cause: "firewall_drop", dst: DROPPED, note: "; by design waits 2 ms for an event that contradicts" },
];

/// Measures each failure, idle and under load.
pub(super) fn rows(stage: &Stage, plan: Plan) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for busy in [false, true] {
        for failure in &FAILURES {
            rows.extend(case(stage, plan, failure, busy)?);
        }
    }
    Ok(rows)
}

fn case(stage: &Stage, plan: Plan, failure: &Failure, busy: bool) -> Result<[Row; 2]> {
    let tracer = Subject::start(stage, "attach", &[])?;
    let mut prober = Prober::start(stage)?;
    let seconds = plan.attempts as f64 * PACE.as_secs_f64() * 3.0 + 5.0;
    let load = busy.then(|| stage.load(UNTRACKED, seconds)).transpose()?;
    std::thread::sleep(Duration::from_millis(500));
    prober.attempts(failure.dst, plan.attempts, PACE)?;
    std::thread::sleep(Duration::from_millis(100));
    drop(load);
    let lines = tracer.stop()?;
    let verdicts: Vec<&Line> = lines.iter().filter(|l| l.is("verdict") && l.record["revises"].is_null()).collect();
    let right: Vec<&Line> =
        verdicts.iter().copied().filter(|l| l.record["verdict"]["cause"] == failure.cause).collect();
    if right.is_empty() {
        let reported = verdicts.first().map_or(&Value::Null, |line| &line.record["verdict"]);
        bail!(
            "no verdict {} for {} attempts; {} other verdicts, the first: {reported}",
            failure.cause,
            plan.attempts,
            verdicts.len()
        );
    }
    let others = verdicts.iter().filter(|l| l.record["verdict"]["cause"] != failure.cause);
    let others: Vec<&str> = others.filter_map(|l| l.record["verdict"]["cause"].as_str()).collect();
    Ok(case_rows(failure, busy, plan.attempts, &right, &others))
}

fn case_rows(failure: &Failure, busy: bool, attempts: usize, right: &[&Line], others: &[&str]) -> [Row; 2] {
    let own = Sample::new(right.iter().filter_map(|line| line.record["timing"]["detected_after_ms"].as_f64()));
    let piped = Sample::new(right.iter().filter_map(|line| after_event(line)));
    let state = if busy { "under load" } else { "idle" };
    let row = |what: &str, sample: &Sample, note: &str| {
        let detail = format!(
            "p50 {:.2}, max {:.2}; {} verdicts of {attempts} attempts, {} with another cause {others:?}{note}",
            sample.median(),
            sample.max(),
            sample.len(),
            others.len()
        );
        Row::new(format!("{} {state}, {what}, p99", failure.cause), sample.quantile(0.99), "ms")
            .target(Target::Below(LIMIT))
            .detail(detail)
            .data(json!({"ms": spread(sample), "attempts": attempts, "others": others}))
    };
    [row("tracer's clock", &own, failure.note), row("event to line read", &piped, failure.note)]
}

/// The time from the deciding event to the line, in milliseconds.
fn after_event(line: &Line) -> Option<f64> {
    let decided = line.record["time_boot_ns"].as_u64()?;
    Some(line.at.saturating_sub(decided) as f64 / 1e6)
}
