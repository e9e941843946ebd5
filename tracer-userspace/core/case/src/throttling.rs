//! How much the CPU limit of the server throttled it while the prober waited.

use std::path::Path;

use serde_json::json;

use crate::case::Case;
use crate::evidence::evidence_of;
use crate::finding::Finding;
use crate::giving_up::{sent_request_late, taken_and_silent};
use crate::serving::{connection, readings};
use crate::sidecar;
use crate::stall::MIN_SPAN_NS;
use tracer_model::event::{Pressure, Throttled};
use tracer_model::plural::counted;
use tracer_model::record::Cause;

/// How much the cgroup of the server was throttled between the first and the last reading, the latter at `time`.
#[derive(Clone, Copy, Debug)]
pub struct Throttling<'a> {
    cgroup: &'a str,
    /// It is a parent of the server's cgroup.
    is_above: bool,
    time: u64,
    times: u64,
    /// The sum over processors.
    micros: u64,
    /// The most wall time that it can have been, microseconds.
    pub wall_us: u64,
}

impl Throttling<'_> {
    /// The finding of the cause `cpu_throttled`.
    pub fn finding(&self) -> Finding {
        let Self { cgroup, is_above, time, times, micros, .. } = *self;
        let text = format!("{cgroup} was throttled {}, during the attempt", self.how_much());
        let fields = json!({ "times": times, "throttled_ms": micros / 1000 });
        let evidence = evidence_of("cpu.stat", time, text.clone(), fields);
        let fix = match is_above {
            true if is_of_pod(cgroup) => FIX_POD.to_owned(),
            true => format!(
                "Raise the CPU limit of {cgroup}, a cgroup above the container's, or remove it: that of a service on the node. It was throttled during the attempt"
            ),
            false => FIX.to_owned(),
        };
        Finding::likely(Cause::CpuThrottled, vec![evidence], text, fix)
    }

    /// "its CPU limit throttled the container 7 times, 70.0 ms summed over its processors"
    pub fn words(&self) -> String {
        let limit = if self.is_above { "a CPU limit above its own" } else { "its CPU limit" };
        format!("{limit} throttled the container {}", self.how_much())
    }

    fn how_much(&self) -> String {
        format!("{}, {:.1} ms summed over its processors", counted(self.times, "time"), self.micros as f64 / 1e3)
    }
}

/// Less than this share of the time explains no silence.
const LEAST_SHARE: u64 = 10;
/// The length of a period, unless somebody changed it: `cpuCFSQuotaPeriod` of the kubelet.
const PERIOD_US: u64 = 100_000;

/// A reading: its time, the throttling of cgroups, and the pressure of cgroups if that was read at the same time.
pub type Reading<'a> = (u64, &'a [Throttled], &'a [Pressure]);

/// The throttling of the server while it had the request, if it was long enough to explain the silence.
pub fn throttling<'a>(case: &Case<'a>) -> Option<Throttling<'a>> {
    let ended = taken_and_silent(case)?;
    let (attempt, targets) = (case.attempt, &case.node.targets);
    let asked = sent_request_late(case).unwrap_or(attempt.started);
    let in_time = |(time, _): &(u64, &[Throttled])| (asked..=ended).contains(time);
    let own = || Some(targets.throttling(attempt.netns?, attempt.flow.dst));
    let mut inside = own()?.filter(in_time);
    if let Some((first, last)) = inside.next().zip(inside.last()) {
        let servings = readings(case);
        let with_pressure = |(time, throttled)| {
            let serving = servings.iter().find(|(at, _)| *at == time);
            (time, throttled, serving.map_or([].as_slice(), |(_, it)| it.pressure.as_slice()))
        };
        return between(&cgroups_of_server(case), with_pressure(first), with_pressure(last));
    }
    // The readings of throttling may be of an earlier pod with this address.
    let mut inspections = targets.inspections(attempt);
    let (_, known) = inspections.find(|(_, reading)| !reading.throttled.is_empty())?;
    let known: Vec<&str> = known.throttled.iter().map(|it| it.cgroup.as_str()).collect();
    let mut all: Vec<_> = targets.all_throttling().filter(in_time).collect();
    all.sort_unstable_by_key(|(time, _)| *time);
    by_others(&known, &all)
}

/// The same by readings of any targets, oldest first: they show the limits of cgroups that they share with the target. It
/// is in one of the `known` cgroups, and only those above all others are surely above it.
fn by_others<'a>(known: &[&str], all: &[(u64, &'a [Throttled])]) -> Option<Throttling<'a>> {
    let is_above = |it: &str, other: &str| it != other && Path::new(other).starts_with(it);
    let servers: Vec<&str> =
        known.iter().copied().filter(|it| !known.iter().any(|other| is_above(it, other))).collect();
    let above_all = known.iter().filter(|it| servers.iter().all(|server| is_above(it, server)));
    let of_each = above_all.filter_map(|cgroup| {
        let of = |read: &'a [Throttled]| read.iter().find(|it| it.cgroup == *cgroup).map(std::slice::from_ref);
        let mut having = all.iter().filter_map(|(time, read)| Some((*time, of(read)?, [].as_slice())));
        let (first, last) = (having.next()?, having.next_back()?);
        between(&servers, first, last).filter(|_| last.0 - first.0 >= MIN_SPAN_NS)
    });
    of_each.max_by_key(|it| it.wall_us)
}

/// How much one of these cgroups, or a parent of it, was throttled between two readings. Without a name, any.
///
/// The kernel sums the time over processors, and counts a period once. So the wall time is no longer than those periods.
pub fn between<'a>(
    serving: &[&str],
    (began, first, waited_first): Reading<'_>,
    (time, last, waited_last): Reading<'a>,
) -> Option<Throttling<'a>> {
    let holds = |limited: &str| serving.iter().any(|own| Path::new(own).starts_with(limited));
    let own = last.iter().filter(|now| serving.is_empty() || holds(&now.cgroup));
    let since = own.filter_map(|now| {
        let before = first.iter().find(|before| before.cgroup == now.cgroup)?;
        let (times, micros) = (now.times.saturating_sub(before.times), now.micros.saturating_sub(before.micros));
        let is_above = !serving.is_empty() && !serving.contains(&now.cgroup.as_str());
        let in_periods = times.saturating_mul(now.period_us.unwrap_or(PERIOD_US));
        let full = all_waited(&now.cgroup, waited_first, waited_last).unwrap_or(u64::MAX);
        let wall_us = micros.min(in_periods).min(full);
        Some(Throttling { cgroup: &now.cgroup, is_above, time, times, micros, wall_us })
    });
    let enough = since.filter(|it| it.wall_us.saturating_mul(1000 * LEAST_SHARE) >= time.saturating_sub(began));
    enough.max_by_key(|it| (!it.is_above, it.wall_us))
}

/// For how long no task of this cgroup got a processor and some waited, microseconds. Throttled tasks wait, too.
fn all_waited(cgroup: &str, first: &[Pressure], last: &[Pressure]) -> Option<u64> {
    let full = |pressure: &[Pressure]| pressure.iter().find(|it| it.of == cgroup)?.cpu_full_us;
    full(last)?.checked_sub(full(first)?)
}

/// The cgroup of a pod: `kubepods/burstable/podUID`, or `kubepods-burstable-podUID.slice`. Its quota is the sum of its
/// containers' limits.
fn is_of_pod(cgroup: &str) -> bool {
    let name = Path::new(cgroup).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    cgroup.contains("kubepods") && (name.starts_with("pod") || name.contains("-pod"))
}

/// The cgroups of the process that has the connection; if it is not known, those of all that listen. A pod has other
/// containers, too, and their limits are not the server's. Those of a parent cgroup are. None, if a proxy waits for
/// another container of the pod.
fn cgroups_of_server<'a>(case: &Case<'a>) -> Vec<&'a str> {
    if sidecar::asks_another(case) {
        return Vec::new();
    }
    let accepted = connection(case).and_then(|it| it.pid);
    let readings = readings(case);
    let servers = readings.iter().flat_map(|(_, reading)| &reading.processes);
    let servers = servers.filter(|it| accepted.is_none_or(|pid| pid == it.pid));
    servers.filter_map(|it| it.cpu_cgroup.as_deref()).collect()
}

const FIX: &str = "Raise the CPU limit of the container, or remove it: the container was throttled during the attempt";

const FIX_POD: &str = "Raise the CPU limits of the pod's containers, or remove them: the limit of the pod is their sum, unless it has one of its own (spec.resources). The pod was throttled during the attempt";
