//! Properties of the core over generated streams: recordings mixed, shifted, repeated, cut short or with holes.
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

proptest! {
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
}
