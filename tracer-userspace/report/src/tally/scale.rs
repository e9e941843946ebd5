//! Divides time in at most [`COLUMNS`] columns: when the time in view grows, two columns become one.

use std::collections::BTreeMap;

/// Columns of the axis at most.
pub(crate) const COLUMNS: i64 = 120;
/// The narrowest column: 2^10 µs, a millisecond.
const NARROWEST: u32 = 10;

/// The time in view, in microseconds, and how wide a column is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// First and last moment.
    pub(crate) span: Option<(i64, i64)>,
    /// A column is 2^shift µs wide.
    pub(crate) shift: u32,
}

impl Default for Scale {
    fn default() -> Self {
        Self { span: None, shift: NARROWEST }
    }
}

impl Scale {
    /// Extends the time in view to this moment.
    pub(crate) fn see(&mut self, us: i64) {
        let (from, to) = self.span.map_or((us, us), |(from, to)| (from.min(us), to.max(us)));
        self.span = Some((from, to));
        while (to >> self.shift) - (from >> self.shift) >= COLUMNS {
            self.shift += 1;
        }
    }
}

/// How often something happened, by column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    shift: u32,
    counts: BTreeMap<i64, u64>,
}

impl Series {
    pub(crate) fn add(&mut self, us: i64, count: u64, scale: &Scale) {
        self.coarsen(scale.shift);
        *self.counts.entry(us >> self.shift).or_default() += count;
    }

    pub(crate) fn take(&mut self, us: i64, scale: &Scale) {
        self.coarsen(scale.shift);
        let column = us >> self.shift;
        if let Some(count) = self.counts.get_mut(&column) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&column);
            }
        }
    }

    /// The columns in which something happened, of the width of this scale.
    pub(crate) fn columns(&mut self, scale: &Scale) -> impl Iterator<Item = (i64, u64)> {
        self.coarsen(scale.shift);
        self.counts.iter().map(|(&column, &count)| (column, count))
    }

    fn coarsen(&mut self, shift: u32) {
        let by = shift.saturating_sub(self.shift);
        self.shift += by;
        if by == 0 || self.counts.is_empty() {
            return;
        }
        for (column, count) in std::mem::take(&mut self.counts) {
            *self.counts.entry(column >> by.min(63)).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn columns_become_wider_and_nothing_is_lost() {
        let (mut scale, mut series) = (Scale::default(), Series::default());
        for us in [0, 500, 3_600_000_000, -1, i64::MAX >> 8] {
            scale.see(us);
            series.add(us, 1, &scale);
        }
        assert_eq!(series.columns(&scale).map(|(_, n)| n).sum::<u64>(), 5);
        series.take(500, &scale);
        assert_eq!(series.columns(&scale).collect::<Vec<_>>().first(), Some(&(-1, 1)));
        assert_eq!(series.columns(&scale).map(|(_, n)| n).sum::<u64>(), 4);
    }

    proptest! {
        #[test]
        fn a_series_is_bounded_and_counts_everything(times in prop::collection::vec(-(1_i64 << 60)..(1 << 60), 1..300)) {
            let (mut scale, mut series) = (Scale::default(), Series::default());
            for &us in &times {
                scale.see(us);
                series.add(us, 1, &scale);
            }
            let columns: Vec<_> = series.columns(&scale).collect();
            prop_assert!(columns.len() <= COLUMNS as usize);
            prop_assert_eq!(columns.iter().map(|(_, n)| n).sum::<u64>(), times.len() as u64);
        }
    }
}
