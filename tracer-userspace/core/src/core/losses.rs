//! Loss records: of each place one a second at most. While a ring overflows, something is lost between any two batches.

use std::collections::BTreeMap;

use super::records::loss_record;
use tracer_model::decision::Decision;
use tracer_model::event::Loss;

/// Between two records of a place.
const EVERY_NS: u64 = 1_000_000_000;
/// Places; a recording may name any number.
const MAX: usize = 16;

/// When losses were reported, and those that were not yet.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<String, Reported>);

#[derive(Debug)]
struct Reported {
    /// When the next may be printed.
    next: u64,
    /// When the last of those came that wait for it, and all of them as one.
    waiting: Option<(u64, Loss)>,
}

impl Reported {
    fn add(&mut self, time: u64, loss: &Loss) {
        let waiting = match self.waiting.take() {
            Some((_, before)) => before.and(loss),
            None => loss.clone(),
        };
        self.waiting = Some((time, waiting));
    }
}

impl Losses {
    /// Takes a loss in; its record, if it is to be written now.
    pub(super) fn push(&mut self, time: u64, loss: &Loss) -> Option<Decision> {
        if let Some(reported) = self.0.get_mut(&loss.where_).filter(|reported| time < reported.next) {
            reported.add(time, loss);
            return None;
        }
        if self.0.len() < MAX || self.0.contains_key(&loss.where_) {
            let before =
                self.0.insert(loss.where_.clone(), Reported { next: time.saturating_add(EVERY_NS), waiting: None });
            if let Some((_, waiting)) = before.and_then(|reported| reported.waiting) {
                return Some(loss_record(time, &waiting.and(loss)));
            }
        }
        Some(loss_record(time, loss))
    }

    /// When the first of those that wait is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.0.values().filter(|reported| reported.waiting.is_some()).map(|reported| reported.next).min()
    }

    /// Tells of those that are due.
    pub(super) fn fire(&mut self, now: u64, out: &mut Vec<Decision>) {
        for reported in self.0.values_mut().filter(|reported| reported.next <= now) {
            if let Some((time, loss)) = reported.waiting.take() {
                reported.next = time.max(reported.next).saturating_add(EVERY_NS);
                out.push(loss_record(time, &loss));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::decide;
    use tracer_model::event::{Loss, Observation, ObservationKind};
    use tracer_model::record::{Body, LossBody};

    const MS: u64 = 1_000_000;

    fn reported(losses: &[(u64, &str)], last: u64) -> Vec<(String, u64, u64, u64)> {
        let loss = |(at, place): &(u64, &str)| {
            let (from_boot_ns, to_boot_ns) = ((at - 10) * MS, at * MS);
            let loss = Loss { where_: (*place).into(), count: 1, from_boot_ns, to_boot_ns };
            Observation { time_boot_ns: to_boot_ns, kind: ObservationKind::Loss(loss) }
        };
        let mut observations: Vec<Observation> = losses.iter().map(loss).collect();
        observations.push(Observation { time_boot_ns: last * MS, kind: ObservationKind::Tick });
        let body = |loss: LossBody| (loss.where_, loss.count, loss.from_boot_ns / MS, loss.to_boot_ns / MS);
        let bodies = decide(&observations).into_iter().map(|decision| decision.body);
        bodies.filter_map(|it| if let Body::Loss(loss) = it { Some(body(loss)) } else { None }).collect()
    }

    /// As the ring is read: each batch of a flood has its loss.
    #[test]
    fn a_place_is_reported_of_once_a_second() {
        let flood: Vec<(u64, &str)> = (0..300).map(|n| (100 + 10 * n, "ring")).collect();
        let ring = |count, from, to| ("ring".to_owned(), count, from, to);
        let expected = [ring(1, 90, 100), ring(100, 100, 1100), ring(100, 1100, 2100), ring(99, 2100, 3090)];
        assert_eq!(reported(&flood, 5000), expected);
        assert_eq!(reported(&flood, 3090), expected, "the end of the stream tells what is left");
    }

    #[test]
    fn places_do_not_wait_for_each_other() {
        let places: Vec<(String, u64)> =
            reported(&[(100, "ring"), (150, "map"), (200, "ring")], 5000).into_iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(places, [("ring".into(), 1), ("map".into(), 1), ("ring".into(), 1)]);
    }
}
