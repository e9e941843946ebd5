//! Events that were lost, and when.

use std::collections::VecDeque;

use super::recent::remember;
use crate::event::Loss;

/// Losses kept.
const MAX: usize = 512;

/// The last losses.
#[derive(Debug, Default)]
pub(super) struct Losses(VecDeque<Loss>);

impl Losses {
    pub(super) fn see(&mut self, loss: &Loss) {
        remember(MAX, &mut self.0, loss.clone());
    }

    /// Those that may lie between two moments.
    pub(super) fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &Loss> {
        self.0.iter().filter(move |loss| loss.from_boot_ns <= to && loss.to_boot_ns >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(count: u64) -> Losses {
        let mut losses = Losses::default();
        for n in 1..=count {
            losses.see(&Loss { where_: "ring".into(), count: n, from_boot_ns: 10 * n, to_boot_ns: 10 * n + 5 });
        }
        losses
    }

    #[test]
    fn a_loss_counts_where_it_touches_the_time() {
        let losses = losses(3);
        let counts = |from, to| losses.between(from, to).map(|loss| loss.count).collect::<Vec<_>>();
        assert_eq!(counts(15, 20), [1, 2]);
        assert_eq!(counts(22, 23), [2], "in the midst of it");
        assert_eq!(counts(16, 19), [0; 0]);
    }

    #[test]
    fn the_oldest_go_first() {
        let losses = losses(MAX as u64 + 2);
        assert_eq!(losses.between(0, u64::MAX).count(), MAX);
        assert_eq!(losses.between(0, u64::MAX).next().map(|loss| loss.count), Some(3));
    }
}
