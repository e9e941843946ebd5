//! Lost events, and their times.

use std::collections::VecDeque;

use tracer_model::event::Loss;
use tracer_model::recent::remember;

const MAX: usize = 512;
/// Consecutive losses of a place are joined up to this duration. A full ring loses events between any two batches, and
/// these losses must not push out the earlier ones.
const JOINED_NS: u64 = 1_000_000_000;
/// How many of the last losses are searched for the one before: there are fewer places.
const RECENT: usize = 16;

/// The last losses.
#[derive(Debug, Default)]
pub struct Losses(VecDeque<Loss>);

impl Losses {
    pub(super) fn observe(&mut self, loss: &Loss) {
        let joins = |last: &&mut Loss| {
            let whole = loss.to_boot_ns.saturating_sub(last.from_boot_ns);
            last.where_ == loss.where_ && loss.from_boot_ns == last.to_boot_ns && whole <= JOINED_NS
        };
        match self.0.iter_mut().rev().take(RECENT).find(joins) {
            Some(last) => *last = last.clone().and(loss),
            None => remember(MAX, &mut self.0, loss.clone()),
        }
    }

    /// The losses that may lie between two times.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &Loss> {
        self.0.iter().filter(move |loss| loss.from_boot_ns <= to && loss.to_boot_ns >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(count: u64) -> Losses {
        let mut losses = Losses::default();
        for n in 1..=count {
            losses.observe(&Loss { where_: "ring".into(), count: n, from_boot_ns: 10 * n, to_boot_ns: 10 * n + 5 });
        }
        losses
    }

    #[test]
    fn a_loss_counts_if_it_overlaps_the_time() {
        let losses = losses(3);
        let counts = |from, to| losses.between(from, to).map(|loss| loss.count).collect::<Vec<_>>();
        assert_eq!(counts(15, 20), [1, 2]);
        assert_eq!(counts(22, 23), [2], "in the middle of it");
        assert_eq!(counts(16, 19), [0; 0]);
    }

    /// A loss for each batch, a thousand a second, and one of another place between them.
    #[test]
    fn many_losses_do_not_push_out_an_earlier_one() {
        let mut losses = losses(1);
        for ms in 1..=60_000_u64 {
            for where_ in ["ring", "map"] {
                let (from_boot_ns, to_boot_ns) = (ms * 1_000_000, (ms + 1) * 1_000_000);
                losses.observe(&Loss { where_: where_.into(), count: 1, from_boot_ns, to_boot_ns });
            }
        }
        assert_eq!(losses.0.len(), 121);
        assert_eq!(losses.between(0, 20).map(|loss| loss.count).collect::<Vec<_>>(), [1]);
        assert_eq!(losses.between(0, u64::MAX).map(|loss| loss.count).sum::<u64>(), 1 + 2 * 60_000);
    }

    #[test]
    fn the_oldest_losses_are_dropped_first() {
        let losses = losses(MAX as u64 + 2);
        assert_eq!(losses.between(0, u64::MAX).count(), MAX);
        assert_eq!(losses.between(0, u64::MAX).next().map(|loss| loss.count), Some(3));
    }
}
