//! Properties of the core over generated streams: any mix of scenarios, shifted, repeated, cut short or with holes.
//!
//! ```text
//! (here)     streams made by hand
//! real       streams made of the recordings in tests/fixtures, which `fixtures` reads
//! rename     a recording under other names
//! merge      several as one
//! soak       an hour of a node's traffic
//! ```

pub(crate) mod fixtures;
mod merge;
mod real;
mod rename;
mod soak;

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::testing::*;
use tracer_model::decision::Decision;

/// The attempt of a failure that was emitted and then taken back, if there is one.
fn taken_back(decisions: &[Decision]) -> Option<ConnId> {
    let mut failed = std::collections::BTreeSet::new();
    decisions.iter().find_map(|decision| match (decision.attempt, &decision.body) {
        (Some(conn), Body::Verdict(v)) if v.verdict.outcome == Outcome::Failure => {
            failed.insert(conn);
            None
        }
        (conn, Body::Verdict(_)) => conn.filter(|conn| failed.contains(conn)),
        _ => None,
    })
}

/// Events after which an attempt may fail, or succeed once its SYN was sent again.
const TROUBLE: &[fn(&mut Stream)] = &[
    |s| _ = s.connect().filtered(SYN, POD),
    |s| _ = s.connect().drop_on(SYN, "QDISC_DROP", NODE, lo(false)),
    |s| _ = s.connect().drop(SYN, "NEIGH_FAILED", NODE),
    |s| _ = s.connect().queue_full(ListenQueue::Accept),
    |s| _ = s.connect().filtered(SYN_ACK, POD),
    |s| _ = s.connect().syn_again(),
    |s| _ = s.connect().filtered(SYN, POD).icmp(3, 1),
];

/// Attempts with trouble: which, whether the attempt then succeeds, after how long, and whether its probe is known.
fn troubled() -> impl Strategy<Value = Vec<(usize, bool, u64, bool)>> {
    prop::collection::vec((0..TROUBLE.len(), any::<bool>(), 0_u64..2_000, any::<bool>()), 1..8)
}

/// A scenario: its observations, and the cause that it must get.
type PropertyCase = (fn(&mut Stream), Option<&'static str>);

const CASES: &[PropertyCase] = &[
    (healthy, None),
    (touched, None),
    (
        |s| _ = s.connect().reset_sent(SYN, true, None).reset_received(TcpState::SynSent, 0).gives_up(),
        Some("connection_refused"),
    ),
    (|s| _ = s.connect().reset_received(TcpState::SynSent, 0).gives_up(), Some("handshake_rst")),
    (|s| _ = s.connect().filtered(SYN, POD).gives_up(), Some("firewall_drop")),
    (|s| _ = s.connect().filtered(SYN, POD).reset_received(TcpState::SynSent, 0).gives_up(), Some("firewall_reject")),
    (|s| _ = s.connect().icmp(3, 3).filtered(SYN, POD).gives_up(), Some("firewall_reject")),
    (
        |s| _ = s.connect().ipvs(SYN_ACK, IpvsOp::NoBackend).filtered(SYN_ACK, NODE).gives_up(),
        Some("nodeport_ephemeral_collision"),
    ),
    (|s| _ = s.connect().drop_on(SYN, "QDISC_DROP", NODE, lo(false)).gives_up(), Some("loopback_down")),
    (reset_by_application, Some("mid_stream_rst")),
    (slow, Some("slow_response")),
    (|s| _ = s.connect().syn_again().gives_up(), Some("unexplained")),
];

fn healthy(s: &mut Stream) {
    s.connect().established().closes((100, 101, 200));
}

fn touched(s: &mut Stream) {
    s.connect().established().closes((0, 1, 0));
}

fn reset_by_application(s: &mut Stream) {
    s.connect().established().resets((100, 101, 0)).reset_sent(tracer_model::event::TcpFlags(0), false, Some("app"));
}

fn slow(s: &mut Stream) {
    s.connect().established().wait_ms(1000).closes((100, 101, 0));
}

/// A mix of scenarios: which, and when each begins.
fn mixes() -> impl Strategy<Value = Vec<(usize, u64)>> {
    prop::collection::vec((0..CASES.len(), 0_u64..3_000_000_000), 1..12)
}

/// The observations of a mix in the order of time, and the cause each connection must get.
fn mix(scenarios: &[(usize, u64)]) -> (Vec<Observation>, BTreeMap<ConnId, Option<&'static str>>) {
    let mut all = Stream::new().observations;
    let mut expected = BTreeMap::new();
    for (number, &(scenario, offset)) in (1_u64..).zip(scenarios) {
        let (make, cause) = CASES[scenario];
        let mut stream = Stream::numbered(number, offset);
        make(&mut stream);
        all.extend(stream.observations.into_iter().skip(1));
        expected.insert(ConnId(number), cause);
    }
    all.sort_by_key(|o| o.time_boot_ns);
    (all, expected)
}

/// The last verdict of each connection, and how many it had.
fn verdicts(decisions: &[Decision]) -> BTreeMap<ConnId, (String, Outcome, usize)> {
    let mut found: BTreeMap<ConnId, (String, Outcome, usize)> = BTreeMap::new();
    for decision in decisions {
        if let (Some(conn), Body::Verdict(v)) = (decision.attempt, &decision.body) {
            let count = found.get(&conn).map_or(0, |(.., n)| *n);
            found.insert(conn, (v.verdict.cause.name().to_owned(), v.verdict.outcome, count + 1));
        }
    }
    found
}

/// Every connection has the cause it must have, and one verdict.
fn check(observations: &[Observation], expected: &BTreeMap<ConnId, Option<&'static str>>) -> Result<(), TestCaseError> {
    let found = verdicts(&decide(observations));
    for (conn, cause) in expected {
        let got = found.get(conn);
        prop_assert_eq!(got.map(|(l, ..)| l.as_str()), *cause, "connection {}", conn.0);
        prop_assert!(got.is_none_or(|(.., n)| *n == 1), "connection {} has more than one verdict", conn.0);
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_scenario_of_a_mix_gets_its_cause_once(scenarios in mixes()) {
        let (observations, expected) = mix(&scenarios);
        check(&observations, &expected)?;
        prop_assert_eq!(taken_back(&decide(&observations)), None);
    }

    #[test]
    fn no_failure_is_taken_back(attempts in troubled()) {
        let mut all = Stream::new().observations;
        for (number, (trouble, gets_through, after_ms, is_probe)) in (1..).zip(attempts) {
            let mut stream = Stream::numbered(number, number * 150_000_000);
            if is_probe {
                stream.http_readiness();
            }
            TROUBLE[trouble](&mut stream);
            stream.wait_ms(after_ms).syn_again();
            if gets_through {
                stream.established().closes((100, 101, 200));
            } else {
                stream.gives_up();
            }
            all.extend(stream.observations.into_iter().skip(1));
        }
        all.sort_by_key(|o| o.time_boot_ns);
        prop_assert_eq!(taken_back(&decide(&all)), None);
    }

    #[test]
    fn a_lost_event_never_makes_another_definite_cause(scenarios in mixes(), which in any::<prop::sample::Index>()) {
        let (mut observations, expected) = mix(&scenarios);
        let index = which.index(observations.len() - 1) + 1;
        observations.remove(index);
        let loss = Loss { where_: "ring".into(), count: 1, from_boot_ns: 0, to_boot_ns: u64::MAX };
        observations.insert(1, Observation { time_boot_ns: observations[0].time_boot_ns, kind: ObservationKind::Loss(loss) });
        for (conn, (cause, outcome, _)) in verdicts(&decide(&observations)) {
            let must = expected[&conn];
            prop_assert!(
                cause == "unexplained" || Some(cause.as_str()) == must,
                "connection {} must be {must:?} or unexplained and is {cause} ({outcome:?})", conn.0
            );
        }
    }

    #[test]
    fn a_recorded_observation_reads_back(scenarios in mixes()) {
        for observation in mix(&scenarios).0 {
            let line = serde_json::to_string(&observation).expect("an observation is JSON");
            prop_assert_eq!(serde_json::from_str::<Observation>(&line).expect("and reads back"), observation);
        }
    }
}
