//! The CPU limit throttled the target's container while the prober waited for an answer. Goes to `also`.

use super::super::serving::{connection, readings};
use super::super::sidecar;
use super::target_starved::MIN_SPAN_NS;
use super::*;
use std::path::Path;
use tracer_model::event::Throttled;

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    throttling(case).map(|it| it.finding())
}

/// How much the cgroup of the server was throttled between the first and the last reading, the latter at `time`.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Throttling<'a> {
    cgroup: &'a str,
    /// It is a parent of the server's cgroup.
    is_above: bool,
    time: u64,
    times: u64,
    pub(in super::super) micros: u64,
}

impl Throttling<'_> {
    pub(in super::super) fn finding(&self) -> Finding {
        let Self { cgroup, is_above, time, times, micros } = *self;
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

    /// "its CPU limit throttled the container 7 times, 70.0 ms in all"
    pub(super) fn words(&self) -> String {
        let limit = if self.is_above { "a CPU limit above its own" } else { "its CPU limit" };
        format!("{limit} throttled the container {}", self.how_much())
    }

    fn how_much(&self) -> String {
        format!("{}, {:.1} ms in all", counted(self.times, "time"), self.micros as f64 / 1e3)
    }
}

/// Less than this share of the time explains no silence.
const LEAST_SHARE: u64 = 10;

pub(super) fn throttling<'a>(case: &Case<'a>) -> Option<Throttling<'a>> {
    let ended = taken_and_silent(case)?;
    let (attempt, targets) = (case.attempt, &case.node.targets);
    let asked = sent_request_late(case).unwrap_or(attempt.started);
    let in_time = |(time, _): &(u64, &[Throttled])| (asked..=ended).contains(time);
    let own = || Some(targets.throttling(attempt.netns?, attempt.flow.dst));
    let mut inside = own()?.filter(in_time);
    if let Some((first, last)) = inside.next().zip(inside.last()) {
        return between(&cgroups_of_server(case), first, last);
    }
    // The readings of throttling may be of an earlier pod with this address.
    let mut inspections = targets.inspections(attempt.netns?, attempt.flow.dst);
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
        let mut having = all.iter().filter_map(|(time, read)| Some((*time, of(read)?)));
        let (first, last) = (having.next()?, having.next_back()?);
        between(&servers, first, last).filter(|_| last.0 - first.0 >= MIN_SPAN_NS)
    });
    of_each.max_by_key(|it| it.micros)
}

/// How much one of these cgroups, or a parent of it, was throttled between two readings. Without a name, any.
pub(in super::super) fn between<'a>(
    serving: &[&str],
    (began, first): (u64, &[Throttled]),
    (time, last): (u64, &'a [Throttled]),
) -> Option<Throttling<'a>> {
    let holds = |limited: &str| serving.iter().any(|own| Path::new(own).starts_with(limited));
    let own = last.iter().filter(|now| serving.is_empty() || holds(&now.cgroup));
    let since = own.filter_map(|now| {
        let before = first.iter().find(|before| before.cgroup == now.cgroup)?;
        let (times, micros) = (now.times.saturating_sub(before.times), now.micros.saturating_sub(before.micros));
        let is_above = !serving.is_empty() && !serving.contains(&now.cgroup.as_str());
        Some(Throttling { cgroup: &now.cgroup, is_above, time, times, micros })
    });
    let enough = since.filter(|it| it.micros.saturating_mul(1000 * LEAST_SHARE) >= time.saturating_sub(began));
    enough.max_by_key(|it| (!it.is_above, it.micros))
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tracer_core::testing::*;

    const APP: &str = "/kubepods/pod1";

    fn slow(times: u64) -> Verdict {
        slow_as(APP, times, None)
    }

    fn slow_as(cgroup: &str, times: u64, server: Option<&str>) -> Verdict {
        slow_in(&mut Stream::new(), cgroup, times, server)
    }

    /// The cgroup is throttled 10 ms each time. The processes of `server` listen.
    fn slow_in(stream: &mut Stream, cgroup: &str, times: u64, server: Option<&str>) -> Verdict {
        let processes =
            server.map(|cgroup| vec![ServerProcess { cpu_cgroup: Some(cgroup.to_owned()), ..server_process(7, 0) }]);
        let read = |reading: &mut Inspection, times: u64| {
            let counted = |cgroup: &str, times| Throttled { cgroup: cgroup.into(), times, micros: times * 10_000 };
            reading.throttled = vec![counted("/kubepods/pod0", 3), counted(cgroup, times)];
            let processes = processes.clone();
            reading.serving = processes.map(|processes| Box::new(Serving { processes, ..Serving::default() }));
        };
        stream.connect().established().wait_ms(200).inspection(|reading| read(reading, 5));
        stream.wait_ms(400).inspection(|reading| read(reading, 5 + times)).wait_ms(400).closes((100, 101, 0));
        assert_eq!(stream.causes(), ["slow_response"]);
        stream.verdict()
    }

    #[test]
    fn a_counter_that_rose_is_reported_beside_the_cause() {
        assert_eq!(slow(7).also, [Cause::CpuThrottled]);
        assert!(slow(0).also.is_empty());
        assert!(slow(3).also.is_empty(), "30 of 400 ms");
    }

    #[test]
    fn only_the_limit_of_the_server_counts() {
        assert_eq!(slow_as(APP, 7, Some(APP)).also, [Cause::CpuThrottled]);
        assert!(slow_as("/kubepods/sidecar", 30, Some(APP)).also.is_empty());
        let mut by_agent = Stream::new();
        by_agent.http_readiness_at("/app-health/shop/readyz");
        assert_eq!(slow_in(&mut by_agent, APP, 30, Some("/kubepods/agent")).also, [Cause::CpuThrottled]);
    }

    /// A limit of the pod's own resources, or of a service that has the server in a child cgroup.
    #[test]
    fn the_limit_of_a_parent_cgroup_counts() {
        for (cgroup, server, fix) in [
            (APP, "/kubepods/pod1/app", "Raise the CPU limits of the pod's containers, or remove them: "),
            (
                "/kubepods.slice/kubepods-pod1.slice",
                "/kubepods.slice/kubepods-pod1.slice/cri-1.scope",
                "Raise the CPU limits of the pod's containers, or remove them: ",
            ),
            (
                "/web.slice",
                "/web.slice/a",
                "Raise the CPU limit of /web.slice, a cgroup above the container's, or remove it: ",
            ),
            ("/podman.service", "/podman.service/a", "Raise the CPU limit of /podman.service, a cgroup above the "),
        ] {
            let held = slow_as(cgroup, 7, Some(server));
            assert_eq!(held.also, [Cause::CpuThrottled]);
            assert_starts(&held.remediation.text, fix);
        }
        assert!(slow_as(APP, 7, Some("/kubepods/pod12")).also.is_empty(), "its name only begins in the same way");
    }

    /// The node has many pods below one limit. Most of them are not read in time.
    #[test]
    fn a_limit_above_many_pods_is_known_by_the_others() {
        let held = |is_read_again: bool| {
            let above = "/kubepods";
            let mut stream = Stream::new().http_readiness().clone();
            let read = |stream: &mut Stream, pod: u8, times: u64| {
                stream.inspection(|reading| {
                    reading.target = SocketAddr::from(([10, 88, 0, pod], 8080));
                    let counted = |cgroup: String| Throttled { cgroup, times, micros: times * 10_000 };
                    reading.throttled = vec![counted(above.into()), counted(format!("{above}/pod{pod}"))];
                });
            };
            read(&mut stream, 2, 1);
            stream.wait_ms(9_000).connect().established().wait_ms(200);
            read(&mut stream, 3, 5);
            stream.wait_ms(400);
            if is_read_again {
                read(&mut stream, 4, 30);
            }
            stream.wait_ms(400).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        assert!(held(false).also.is_empty(), "one reading");
        let verdict = held(true);
        assert_eq!(
            (verdict.cause.name(), verdict.also.as_slice()),
            ("slow_response", [Cause::CpuThrottled].as_slice())
        );
        assert_starts(&verdict.remediation.text, "Raise the CPU limit of /kubepods, a cgroup above the container's");
        assert_starts(&verdict.evidence[0].text, "/kubepods was throttled 25 times");
    }

    /// Of the target, one reading is from before the attempt. Then other targets were read, `apart_ms` after each other.
    fn held_by_others(apart_ms: u64, cgroup: &str, is_new: bool) -> Vec<Cause> {
        let mut stream = Stream::new().http_readiness().clone();
        let read = |stream: &mut Stream, port: u16, times: u64| {
            stream.inspection(|reading| {
                reading.target.set_port(port);
                let counted = |it: &str| {
                    let times = if it == cgroup { times } else { 1 };
                    Throttled { cgroup: it.into(), times, micros: times * 10_000 }
                };
                reading.throttled = ["/pod", "/pod/app", "/pod/sidecar"].map(counted).into();
            });
        };
        read(&mut stream, 8080, 1);
        if is_new {
            stream.netns_ends(POD).netns_made(POD);
        }
        stream.wait_ms(9_000).connect().established().wait_ms(200);
        read(&mut stream, 9090, 5);
        read(stream.wait_ms(apart_ms), 9090, 30);
        stream.wait_ms(800 - apart_ms).closes((100, 101, 0)).wait_ms(5).tick().last_verdict().also
    }

    #[test]
    fn readings_of_others_are_of_a_limit_above_the_server_for_some_time() {
        assert_eq!(held_by_others(400, "/pod", false), [Cause::CpuThrottled]);
        for (apart_ms, cgroup, is_new) in
            [(3, "/pod", false), (400, "/pod/sidecar", false), (400, "/pod/app", false), (400, "/pod", true)]
        {
            assert!(held_by_others(apart_ms, cgroup, is_new).is_empty(), "{apart_ms} {cgroup} {is_new}");
        }
    }

    #[test]
    fn throttling_comes_before_the_slow_response_in_evidence_and_fix() {
        let text = |verdict: &Verdict| verdict.evidence.iter().map(|row| row.text.clone()).collect::<Vec<_>>();
        let (held, free) = (slow(7), slow(0));
        assert_eq!(text(&held)[0], "/kubepods/pod1 was throttled 7 times, 70.0 ms in all, during the attempt");
        assert_eq!(text(&held)[1..], text(&free));
        assert_ends(&held.summary, "; its CPU limit throttled the container 7 times, 70.0 ms in all");
        let after = held.remediation.text.strip_prefix("Raise the CPU limit of the container, or remove it: ");
        assert!(after.is_some_and(|fix| fix.ends_with(&free.remediation.text)), "{}", held.remediation);
    }
}
