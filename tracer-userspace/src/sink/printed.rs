//! Which verdicts were printed: for `revises`, and for the totals.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::event::ConnId;
use crate::record::Label;

/// Attempts remembered. A verdict is revised within its attempt's last seconds.
const REMEMBERED: usize = 8192;

/// The last printed verdict of each attempt, and how many verdicts stand by label.
#[derive(Debug, Default)]
pub(super) struct Printed {
    last: HashMap<ConnId, (u64, Label)>,
    order: VecDeque<ConnId>,
    counts: BTreeMap<Label, u64>,
}

impl Printed {
    /// `seq` and label of the verdict that stands for this attempt.
    pub(super) fn get(&self, attempt: Option<ConnId>) -> Option<(u64, Label)> {
        self.last.get(&attempt?).copied()
    }

    /// Remembers a verdict; says which one it revises.
    pub(super) fn put(&mut self, attempt: Option<ConnId>, seq: u64, label: Label) -> Option<u64> {
        *self.counts.entry(label).or_default() += 1;
        let attempt = attempt?;
        let before = self.last.insert(attempt, (seq, label));
        if let Some((_, label)) = before {
            self.counts.entry(label).and_modify(|n| *n -= 1);
        } else {
            self.order.push_back(attempt);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.last.remove(&oldest);
            }
        }
        before.map(|(seq, _)| seq)
    }

    /// Verdicts that stand (a revised one does not), by label.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Label, u64)> {
        self.counts.iter().map(|(&label, &n)| (label, n)).filter(|&(_, n)| n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_names_the_verdict_before_it() {
        let mut printed = Printed::default();
        assert_eq!(printed.put(Some(ConnId(1)), 0, Label::Unexplained), None);
        assert_eq!(printed.put(Some(ConnId(2)), 1, Label::LoopbackDown), None);
        assert_eq!(printed.put(Some(ConnId(1)), 2, Label::FirewallDrop), Some(0));
        assert_eq!(printed.put(Some(ConnId(1)), 3, Label::FirewallDrop), Some(2));
        let counts: Vec<_> = printed.counts().collect();
        assert_eq!(counts, [(Label::LoopbackDown, 1), (Label::FirewallDrop, 1)]);
    }

    #[test]
    fn it_is_bounded() {
        let mut printed = Printed::default();
        for i in 0..=REMEMBERED as u64 {
            printed.put(Some(ConnId(i)), i, Label::Unexplained);
        }
        assert_eq!(printed.last.len(), REMEMBERED);
        assert_eq!(printed.get(Some(ConnId(0))), None);
    }
}
