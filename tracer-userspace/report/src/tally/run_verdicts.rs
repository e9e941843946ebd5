//! Remembers which verdicts were counted, because a later verdict of the same run may replace one.

use std::collections::VecDeque;

use super::pods::Counted;
use tracer_model::recent::remember;

/// Verdicts of a run that are remembered. A revision comes at most seconds after its attempt's end.
const REMEMBERED: usize = 8192;

/// The verdicts of the run that is being read, of one node.
#[derive(Debug, Default)]
pub(super) struct RunVerdicts {
    last_seq: Option<u64>,
    /// In the order of their numbers; `None` for one that was taken.
    counted: VecDeque<(u64, Option<Counted>)>,
}

impl RunVerdicts {
    /// Takes the number of a record. Each run starts again at 0, so a lower number starts a new run.
    pub(super) fn see(&mut self, seq: u64, is_start: bool) {
        if is_start || self.last_seq.is_some_and(|last| seq <= last) {
            *self = Self::default();
        }
        self.last_seq = Some(seq);
    }

    pub(super) fn put(&mut self, seq: u64, counted: Counted) {
        remember(REMEMBERED, &mut self.counted, (seq, Some(counted)));
    }

    /// Removes the verdict of this number. `None`: it was not counted, or too long ago.
    pub(super) fn take(&mut self, seq: u64) -> Option<Counted> {
        let place = self.counted.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        self.counted[place].1.take()
    }

    /// Whether a verdict of this number would still be remembered if it was counted.
    pub(super) fn reaches(&self, seq: u64) -> bool {
        self.counted.len() < REMEMBERED || self.counted.front().is_some_and(|&(oldest, _)| oldest <= seq)
    }
}
