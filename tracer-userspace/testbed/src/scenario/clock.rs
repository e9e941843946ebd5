//! A wall clock that is set back to before the start of the containers.

use std::time::Duration;

use anyhow::{Result, bail};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};
use tracer_model::record::{Body, Cause, Record};
use tracer_node::clock::{boot_ns, boot_to_wall_ns};

use super::{Fixture, Need, Scenario};
use crate::pods::{HTTP, STARTED_WALL_NS};
use crate::probe::Kind;

const NOT_RUN: Option<Cause> = Some(Cause::ProbeNotRun);
const EVENT: &str = "clock_step";

pub(super) const ALL: &[Scenario] =
    &[Scenario::new("probe_not_run", NOT_RUN, set_back).own().needs(&[Need::OwnMachine]).on_every_kernel()];

/// The kubelet runs no probes after the step. One container of the two pods is probed all the same: it must get no
/// verdict.
fn set_back(fixture: &mut Fixture<'_>) -> Result<()> {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let (probed, other) = (fixture.serving("http", HTTP)?, fixture.serving("http", HTTP)?);
    fixture.succeeds(Kind::Http, other)?;
    let clock = WallClock(boot_to_wall_ns());
    WallClock::set(STARTED_WALL_NS - HOUR_NS)?;
    fixture.event(EVENT, "set back by")?;
    fixture.succeeds(Kind::Http, probed)?;
    let names = |addr: std::net::SocketAddr| {
        format!("pod-{}", addr.ip().to_string().rsplit(['.', ':']).next().unwrap_or_default())
    };
    for (pod, words) in [
        (other, "of app, patient, side, slow, tls of pod"),
        (probed, "of grpc, local, patient, side, slow, tls of pod"),
    ] {
        let mut summaries = Vec::new();
        let mut found = |records: &[Record]| {
            summaries = records.iter().filter_map(|record| not_run(record, &names(pod))).collect();
            summaries.iter().any(|it: &String| it.contains(words))
        };
        // Two periods of the probes must pass.
        let tries = 1 + Duration::from_secs(21).as_secs() / fixture.options.verdict_patience.as_secs();
        if !(0..=tries).any(|_| (fixture.wait_for)(&mut found)) {
            bail!("no verdict {words:?} of {pod}, but {summaries:?}");
        }
    }
    drop(clock);
    fixture.event(EVENT, "set forward by")?;
    Ok(())
}

fn not_run(record: &Record, pod: &str) -> Option<String> {
    let Body::Verdict(it) = &record.body else { return None };
    let matches = it.verdict.cause == Cause::ProbeNotRun && it.k8s.as_ref()?.pod_name.as_deref() == Some(pod);
    matches.then(|| it.verdict.summary.clone())
}

/// Restores the wall clock when it is dropped. Holds the difference of wall clock and boot clock.
struct WallClock(i64);

impl WallClock {
    fn set(wall_ns: i64) -> Result<()> {
        let time = TimeSpec::new(wall_ns / 1_000_000_000, wall_ns % 1_000_000_000);
        Ok(clock_settime(ClockId::CLOCK_REALTIME, time)?)
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        let _ = Self::set(self.0.saturating_add_unsigned(boot_ns()));
    }
}
