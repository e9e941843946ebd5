//! A server of which tracer has too few readings to show whether it could run: other targets waited for one, too, or
//! tracer itself got no CPU time.

use crate::case::{Case, inspected};
use crate::finding::Finding;
use crate::giving_up::sent_request_late;
use crate::serving::{connection, readings};
use crate::stall::{MIN_SPAN_NS, NODE, show_throttling};
use tracer_model::event::{Pressure, Serving};
use tracer_model::record::{Command, Confidence, Remediation};

/// How much of an attempt lies before its first reading and after its last one.
const OUTSIDE_NS: u64 = 500_000_000;
/// Of a longer attempt nothing is read after this time (`INSPECT_UNTIL_NS` of the queries).
const READ_FOR_NS: u64 = 60_000_000_000;

/// The readings of the server while it had the request that show whether it could run, and for how long it must not
/// have run to be starved. Of a server with many processes tracer reads some. Then only the pressure of their cgroup
/// shows it, or the threads of the one that has accepted the connection.
pub fn watch<'a>(case: &Case<'a>, ended: u64) -> (Vec<(u64, &'a Serving)>, u64) {
    let asked = sent_request_late(case).unwrap_or(case.attempt.started);
    let watched = ended.saturating_sub(asked).saturating_sub(OUTSIDE_NS).min(READ_FOR_NS);
    let readings = readings(case).into_iter();
    let holder = connection(case).and_then(|it| it.pid);
    let counts = |it: &Pressure| it.of != NODE && it.cpu_full_us.is_some();
    let shows_all = |it: &Serving| match it.incomplete {
        true => it.pressure.iter().any(counts) || it.processes.iter().any(|it| holder == Some(it.pid)),
        false => !it.processes.is_empty(),
    };
    let readings = readings.filter(|(time, it)| (asked..=ended).contains(time) && shows_all(it));
    (readings.collect(), watched / 2)
}

/// tracer reads servers, but this one was not read often enough. If no namespace has its address, it cannot be read.
fn is_unread(case: &Case<'_>, ended: u64) -> bool {
    let (readings, least) = watch(case, ended);
    let span = readings.first().zip(readings.last()).map_or(0, |((first, _), (last, _))| last.saturating_sub(*first));
    let is_found = inspected(case).is_none_or(|(_, reading)| reading.netns.is_some() || reading.ambiguous);
    let is_watched = case.attempt.prober && case.node.is_at_pod(case.attempt) && is_found;
    is_watched && span < least.max(MIN_SPAN_NS) && case.node.reads_servers()
}

/// Makes a slow server likely if it may have been starved. Returns whether it may.
pub fn add(case: &Case<'_>, finding: &mut Finding) -> bool {
    let Some((ended, _)) = case.attempt.ended.filter(|(ended, _)| is_unread(case, *ended)) else { return false };
    finding.confidence = finding.confidence.min(Confidence::Likely);
    let is_large = readings(case).iter().any(|(_, it)| it.incomplete);
    finding.summary += &format!("{UNREAD}; {}", if is_large { MANY_PROCESSES } else { MANY_TARGETS });
    finding.summary += &busy_node(case, ended).unwrap_or_default();
    let throttled = readings(case).last().and_then(|(_, it)| show_throttling(&it.processes));
    let top = Command::in_cluster("kubectl top node");
    let first = Remediation::from(FIND_STARVATION).run(throttled.into_iter().chain([top]));
    finding.change_fix(|fix| first.then("Otherwise", fix));
    true
}

const UNREAD: &str = "; tracer has too few readings of the server to show whether it got CPU time meanwhile";
const MANY_TARGETS: &str = "perhaps too many targets waited, or tracer itself got no CPU time";
const MANY_PROCESSES: &str = "it reads only some of the processes";
const FIND_STARVATION: &str = "See whether the container was throttled (nr_throttled in cpu.stat of its cgroup and of those above it), or the node lacks CPU";

/// A clause if tasks of the node waited for a processor for at least half of the time between two readings of any servers.
fn busy_node(case: &Case<'_>, ended: u64) -> Option<String> {
    let waited = |reading: &Serving| reading.pressure.iter().find(|it| it.of == NODE)?.cpu_us;
    let all = case.node.targets.all_servings().filter(|(time, _)| (case.attempt.started..=ended).contains(time));
    let all: Vec<_> = all.filter_map(|(time, reading)| Some((time, waited(reading)?))).collect();
    let ((began, before), (at, after)) = (all.iter().min()?, all.iter().max()?);
    let percent = after.saturating_sub(*before).saturating_mul(100_000).checked_div(at - began)?;
    (at - began >= MIN_SPAN_NS && percent >= 50)
        .then(|| format!("; on the node tasks waited for a processor {} % of that time", percent.min(100)))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn server() -> Serving {
        Serving { processes: vec![server_process(7, 1)], ..Serving::default() }
    }

    /// Many targets wait at once, and tracer paces its readings.
    #[test]
    fn a_server_that_was_not_read_is_not_proven_slow() {
        let decided = |read_at: &[u64], is_pod: bool| {
            let mut stream = Stream::new();
            if is_pod {
                stream.http_readiness();
            }
            // Of an earlier attempt.
            stream.connect().established().serving(server()).answers(200);
            stream.wait_ms(9_000).again(8).connect().established();
            let last = read_at.iter().fold(0, |before, at| {
                stream.wait_ms(at - before).serving(server());
                *at
            });
            let verdict = stream.wait_ms(1_000 - last).closes((100, 101, 0)).wait_ms(5).tick().last_verdict();
            assert_eq!(verdict.cause.name(), "slow_response");
            (verdict.confidence, verdict.summary.contains("too few readings"), verdict.remediation)
        };
        for few in [&[] as &[_], &[200], &[850], &[500, 600]] {
            let (confidence, reported, fix) = decided(few, true);
            assert_eq!((confidence, reported), (Confidence::Likely, true), "{few:?}");
            assert_starts(&fix.text, "See whether the container was throttled");
            assert_has(&fix, &["Otherwise: Raise", "kubectl top node"]);
        }
        assert_eq!(decided(&[200, 850], true).0, Confidence::Proven);
        assert_eq!(decided(&[], false).0, Confidence::Proven, "a target elsewhere is never read");
    }

    /// tracer got no CPU time either. An older recording does not say whether servers were read.
    #[test]
    fn no_server_of_the_node_was_read() {
        let confidence = |reads_servers: bool| {
            let mut stream = Stream::new().http_readiness().clone();
            stream.start().reads_servers = reads_servers;
            let verdict =
                stream.connect().established().wait_ms(1_000).closes((100, 101, 0)).wait_ms(5).tick().verdict();
            (verdict.cause.name(), verdict.confidence)
        };
        assert_eq!(confidence(true), ("slow_response", Confidence::Likely));
        assert_eq!(confidence(false), ("slow_response", Confidence::Proven));
    }

    #[test]
    fn a_reading_without_processes_shows_nothing_of_a_server() {
        let is_unread = |serving: &dyn Fn() -> Serving, is_ambiguous: bool| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            for _ in 0..2 {
                stream.wait_ms(300).inspection(|reading| {
                    reading.serving = Some(Box::new(serving()));
                    (reading.netns, reading.ambiguous) = (reading.netns.filter(|_| !is_ambiguous), is_ambiguous);
                });
            }
            let verdict = stream.wait_ms(400).closes((100, 101, 0)).wait_ms(5).tick().last_verdict();
            verdict.summary.contains("too few readings")
        };
        assert!(!is_unread(&server, false));
        assert_eq!([is_unread(&Serving::default, false), is_unread(&Serving::default, true)], [true; 2]);
        // Of a server with many processes.
        let some = || Serving { incomplete: true, ..server() };
        let with_pressure = |of: &str| {
            let pressure = vec![Pressure { of: of.to_owned(), cpu_full_us: Some(0), ..Pressure::default() }];
            Serving { pressure, ..some() }
        };
        let accepted = |pid| Serving { connection: Some(ServedConnection { pid, ..served(0, true) }), ..some() };
        assert_eq!([is_unread(&some, false), is_unread(&|| accepted(None), false)], [true; 2]);
        assert_eq!([is_unread(&|| accepted(Some(7)), false), is_unread(&|| accepted(Some(9)), false)], [false, true]);
        assert_eq!(["/pod", "node"].map(|of| is_unread(&|| with_pressure(of), false)), [false, true]);
    }

    /// Of both probes the readings are from the times of the queries.
    #[test]
    fn two_probes_of_one_port_wait_at_once() {
        let mut stream =
            Stream::new().http_readiness().connect().established().again(8).connect().established().clone();
        let (began, mut at) = (stream.now(), 200);
        while at < 5_000 {
            stream.wait_ms(at - (stream.now() - began) / 1_000_000).serving(server()).wait_ms(3).serving(server());
            at += (at / 4).max(300);
        }
        stream.wait_ms(5_000 - (stream.now() - began) / 1_000_000).back_to(7).closes((100, 101, 0)).wait_ms(5).tick();
        let verdict = stream.last_verdict();
        assert_eq!(verdict.cause.name(), "slow_response");
        assert_lacks(&verdict.summary, &["too few readings"]);
    }

    #[test]
    fn a_server_is_read_only_in_the_first_minute_of_a_long_attempt() {
        let is_unread = |read_until_s: u64| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            stream.wait_ms(200).serving(server()).wait_ms(read_until_s * 1_000).serving(server());
            stream
                .wait_ms((200 - read_until_s) * 1_000)
                .closes((100, 101, 0))
                .wait_ms(5)
                .tick()
                .verdict()
                .summary
                .contains("too few readings")
        };
        assert_eq!([62, 20].map(is_unread), [false, true]);
    }

    /// The other target is read while the first one waits.
    #[test]
    fn the_node_is_busy_by_readings_of_other_targets() {
        let reported = |percent: u64| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            for ms in [200, 600] {
                let cpu_us = Some(ms * 10 * percent);
                let pressure = vec![Pressure { of: "node".into(), cpu_us, ..Pressure::default() }];
                stream.wait_ms(if ms == 200 { 200 } else { 400 }).inspection(|reading| {
                    reading.target = address("10.88.0.3:8080");
                    reading.serving = Some(Box::new(Serving { pressure, ..Serving::default() }));
                });
            }
            stream.wait_ms(400).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        let busy = reported(98);
        assert_eq!((busy.cause.name(), busy.confidence), ("slow_response", Confidence::Likely));
        // Each event is a microsecond later than the one before.
        assert_ends(&busy.summary, "no CPU time; on the node tasks waited for a processor 97 % of that time");
        assert_ends(&reported(40).summary, "no CPU time");
    }
}
