//! Properties over the recordings of real kernels. The same scenario in another form gets the same causes. A scenario
//! with missing events gets weaker causes at most.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixtures::{AttemptVerdicts, Recorded, Verdict, begun, causes, recordings, reported};
use super::merge::merge;
use super::rename::Renaming;
use super::taken_back;
use crate::testing::*;

/// Less than the time that companions of an ambiguous event have.
const JITTER_NS: u64 = 1_900_000;

/// The broader causes that remain when the event is lost that decides for a cause. They are true, but say less.
const BROADER: &[(&str, &[&str])] = &[
    ("startup_budget_exceeded", &["not_listening_yet", "connection_refused"]),
    ("not_listening_yet", &["connection_refused"]),
    ("tls_handshake_slow", &["slow_response"]),
    ("network_policy_drop", &["firewall_drop"]),
    ("service_no_endpoints", &["firewall_reject", "firewall_drop", "connection_refused"]),
    ("conntrack_invalid", &["firewall_drop", "firewall_reject"]),
    ("mesh_redirect", &["mid_stream_rst", "closed_without_answer"]),
];
/// Causes of attempts that the network shows as a success, unless the first bytes of the answer are known.
const ANSWERED: &[&str] = &["app_status_failure", "probe_misconfigured", "tls_eof_noise", "tcp_probe_noise"];

fn recording() -> impl Strategy<Value = &'static Recorded> {
    (0..recordings().len()).prop_map(|n| &recordings()[n])
}

/// The last verdict of each attempt.
fn last(reported: &AttemptVerdicts) -> BTreeMap<ConnId, Verdict> {
    reported.iter().filter_map(|(conn, verdicts)| Some((*conn, verdicts.last()?.clone()))).collect()
}

/// The verdicts in order, without connections: a failed connect that has none is named after its time.
fn in_order(reported: &AttemptVerdicts) -> Vec<Verdict> {
    reported.values().flatten().cloned().collect()
}

/// Whether the event is about a packet: cause and effect do not fix its place among the events of its attempt.
const fn is_of_packet(kind: &ObservationKind) -> bool {
    matches!(
        kind,
        ObservationKind::ResetSent(_) | ObservationKind::Drop(_) | ObservationKind::Icmp(_) | ObservationKind::Ipvs(_)
    )
}

/// The stream as it would arrive if each event of a packet were late by some of these nanoseconds.
fn late(observations: &[Observation], delays: &[u64]) -> Vec<Observation> {
    let mut arrivals: Vec<(u64, &Observation)> = Vec::new();
    for (n, observation) in observations.iter().enumerate() {
        let delay = if is_of_packet(&observation.kind) { delays[n % delays.len()] } else { 0 };
        arrivals.push((observation.time_boot_ns + delay, observation));
    }
    arrivals.sort_by_key(|(arrival, _)| *arrival);
    arrivals.into_iter().map(|(_, observation)| observation.clone()).collect()
}

/// The loss of these events as tracer reports it: before the events that were read with it.
fn loss(lost: &[&Observation], at: u64, any_time: bool) -> Observation {
    let time = |o: Option<&&Observation>| o.map_or(0, |o| o.time_boot_ns);
    let (from_boot_ns, to_boot_ns) = if any_time { (0, u64::MAX) } else { (time(lost.first()), time(lost.last())) };
    let count = lost.len() as u64;
    let kind = ObservationKind::Loss(Loss { where_: "ring".into(), count, from_boot_ns, to_boot_ns });
    Observation { time_boot_ns: at, kind }
}

/// Removes events of a recording: the verdicts must be the same or weaker.
fn check_with_lost(recording: &Recorded, is_lost: impl Fn(usize) -> bool, any_time: bool) -> Result<(), TestCaseError> {
    let is_lost = |n: usize, o: &Observation| o.kind.is_kernel_event() && is_lost(n);
    let (mut lost, mut rest, mut place) = (Vec::new(), Vec::new(), 1);
    for (n, observation) in recording.observations.iter().enumerate() {
        if is_lost(n, observation) {
            place = if lost.is_empty() && !any_time { rest.len() } else { place };
            lost.push(observation);
        } else {
            rest.push(observation.clone());
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    rest.insert(place, loss(&lost, rest[place - 1].time_boot_ns, any_time));
    let found = last(&reported(&decide(&rest)));
    let whole = last(&recording.reported);
    for (conn, got) in &found {
        check_weaker(recording, *conn, got, whole.get(conn), any_time)?;
    }
    for (conn, verdict) in whole.iter().filter(|(conn, _)| !found.contains_key(conn)) {
        let known_to_fail = !ANSWERED.contains(&verdict.cause) && !is_bound(&lost, *conn);
        prop_assert!(!known_to_fail, "{}: the verdict on {} is gone", recording.name, conn.0);
    }
    Ok(())
}

/// Whether one of these events is the beginning or the end of a connection.
fn is_bound(lost: &[&Observation], conn: ConnId) -> bool {
    lost.iter().any(|o| match &o.kind {
        ObservationKind::Connect(c) => c.conn == conn,
        ObservationKind::State(s) => s.conn == conn && (s.old != TcpState::SynSent || s.new == TcpState::Close),
        ObservationKind::ConnectFailed(_) => true,
        _ => false,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_recording_at_another_time(recording in recording(), shift_ns in 0_i64..1_000_000_000_000_000) {
        let observations = Renaming { shift_ns, ..Renaming::default() }.of(recording);
        prop_assert_eq!(in_order(&reported(&decide(&observations))), in_order(&recording.reported), "{}", recording.name);
    }

    #[test]
    fn a_recording_under_other_names(recording in recording(), instance in 0_u64..90, ports in 0_u16..64) {
        let renaming = Renaming { instance, ports: ports * 2, shift_ns: 0 };
        let observations = renaming.of(recording);
        prop_assert_eq!(in_order(&reported(&decide(&observations))), in_order(&recording.reported), "{}", recording.name);
    }

    #[test]
    fn observations_seen_twice(recording in recording(), which in prop::collection::vec(any::<prop::sample::Index>(), 1..8)) {
        let mut observations = recording.observations.clone();
        for index in which {
            let again = index.index(observations.len());
            observations.insert(again, observations[again].clone());
        }
        prop_assert_eq!(&reported(&decide(&observations)), &recording.reported, "{}", recording.name);
    }

    #[test]
    fn events_that_arrive_in_another_order(recording in recording(), delays in prop::collection::vec(0..JITTER_NS, 1..64)) {
        let found = reported(&decide(&late(&recording.observations, &delays)));
        prop_assert_eq!(causes(&found), causes(&recording.reported), "{}", recording.name);
    }

    #[test]
    fn what_a_part_decides_stays_decided(recording in recording(), cut in any::<prop::sample::Index>()) {
        let (_, whole) = push_all(&recording.observations);
        let (_, part) = push_all(&recording.observations[..cut.index(recording.observations.len())]);
        prop_assert_eq!(&whole[..part.len()], &part[..], "{}", recording.name);
    }

    /// Any events are lost. tracer knows that some are, but not when.
    #[test]
    fn a_recording_with_holes(recording in recording(), keep in prop::collection::vec(any::<bool>(), 16..64)) {
        check_with_lost(recording, |n| !keep[n % keep.len()], true)?;
    }

    /// All events of a period are lost. tracer knows which period.
    #[test]
    fn a_recording_with_a_gap(recording in recording(), from in any::<prop::sample::Index>(), count in 1_usize..12) {
        let from = from.index(recording.observations.len());
        check_with_lost(recording, |n| (from..from + count).contains(&n), false)?;
    }

    /// Several recordings run on one node at once: each attempt gets the last verdict that it gets alone. An earlier one
    /// may be missing: with a kubelet's log of another recording, tracer waits for a line.
    #[test]
    fn several_at_once(chosen in prop::collection::vec((recording(), 0_i64..3_000_000_000), 2..6)) {
        let mut streams = Vec::new();
        let mut expected = BTreeMap::new();
        let kernel = chosen[0].0.kernel();
        let chosen: Vec<_> = chosen.iter().filter(|(recording, _)| recording.kernel() == kernel).collect();
        for (instance, (recording, offset)) in (0..).zip(chosen.iter().copied()) {
            let first = recording.observations.first().map_or(0, |o| o.time_boot_ns);
            let renaming = Renaming { instance, ports: 0, shift_ns: 1_000_000_000 + offset - first.cast_signed() };
            let observations = renaming.of(recording);
            expected.extend(causes(&reported(&decide(&observations))));
            streams.push(observations);
        }
        let found = causes(&reported(&decide(&merge(&streams))));
        let names: Vec<&str> = chosen.iter().map(|(recording, _)| recording.name.as_str()).collect();
        let last = |all: BTreeMap<ConnId, Vec<&'static str>>| -> BTreeMap<_, _> {
            all.into_iter().map(|(conn, causes)| (conn, causes.last().copied())).collect()
        };
        prop_assert_eq!(last(found), last(expected), "{:?}", names);
    }
}

/// A recording with lost events gives the same verdict or a weaker one.
fn check_weaker(
    recording: &Recorded,
    conn: ConnId,
    got: &Verdict,
    whole: Option<&Verdict>,
    all: bool,
) -> Result<(), TestCaseError> {
    let what = format!("{}: {} is {whole:?} and became {got:?}", recording.name, conn.0);
    let Some(whole) = whole else { return Err(TestCaseError::fail(what)) };
    let same = got.cause == whole.cause && got.confidence <= whole.confidence;
    let less = got.cause == "unexplained" && got.confidence < Confidence::Proven;
    // A broader cause may be as sure as the whole one.
    let broader = BROADER.iter().any(|(cause, broader)| *cause == whole.cause && broader.contains(&got.cause));
    prop_assert!(same || less || broader, "{}", what);
    prop_assert!(!all || got.confidence < Confidence::Proven, "{}", what);
    Ok(())
}

/// Each failed attempt has one verdict, or two if the second revises the first. An attempt that nothing shows has none.
#[test]
fn one_verdict_and_one_revision_at_most() {
    for recording in recordings() {
        let begun = begun(&recording.observations);
        assert!(
            recording.reported.values().all(|verdicts| verdicts.len() <= 2),
            "{}: {:?}",
            recording.name,
            recording.reported
        );
        assert_eq!(taken_back(&decide(&recording.observations)), None, "{}", recording.name);
        assert!(
            recording.reported.len() <= begun.len().max(1),
            "{}: {} attempts, {:?}",
            recording.name,
            begun.len(),
            recording.reported
        );
        let conns: Vec<ConnId> = recording.observations.iter().filter_map(|it| it.kind.conn()).collect();
        assert!(recording.reported.keys().all(|conn| conns.contains(conn) || begun.is_empty()), "{}", recording.name);
    }
}

#[test]
fn a_recorded_observation_reads_back() {
    for observation in recordings().iter().flat_map(|recording| &recording.observations) {
        let json = serde_json::to_string(observation).expect("an observation is JSON");
        assert_eq!(serde_json::from_str::<Observation>(&json).expect("and reads back"), *observation);
    }
}
