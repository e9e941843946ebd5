//! Computes losses from counters that only grow: the difference between two readings.

use tracer_model::event::Loss;

/// The counters at the last reading, by place.
pub(super) struct Losses {
    counts: Vec<(&'static str, u64)>,
    /// When the counters were last read.
    pub(super) checked_ns: u64,
}

impl Losses {
    /// All counters are zero at this time.
    pub(super) const fn since(now: u64) -> Self {
        Self { counts: Vec::new(), checked_ns: now }
    }

    /// What was lost since the last reading; `counts` are the counters now.
    pub(super) fn grown(&mut self, counts: Vec<(&'static str, u64)>, now: u64) -> Vec<Loss> {
        let (before, from_boot_ns) = (&self.counts, self.checked_ns);
        let loss = |(place, count): &(&'static str, u64)| {
            let reported = before.iter().find(|(name, _)| name == place).map_or(0, |(_, count)| *count);
            let count = count.saturating_sub(reported);
            (count > 0).then(|| Loss { where_: (*place).to_owned(), count, from_boot_ns, to_boot_ns: now })
        };
        let losses = counts.iter().filter_map(loss).collect();
        *self = Self { counts, checked_ns: now };
        losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_the_loss_since_the_last_reading() {
        let mut losses = Losses::since(10);
        let loss = |place: &str, count, from_boot_ns, to_boot_ns| Loss {
            where_: place.into(),
            count,
            from_boot_ns,
            to_boot_ns,
        };
        assert_eq!(losses.grown(vec![(Loss::RING, 0), (Loss::MAP, 3)], 20), [loss("map", 3, 10, 20)]);
        let later = vec![(Loss::MAP, 3), (Loss::LISTEN, 2), (Loss::RING, 5)];
        assert_eq!(losses.grown(later, 30), [loss("listen", 2, 20, 30), loss("ring", 5, 20, 30)]);
        assert_eq!(losses.grown(Vec::new(), 40), [], "detached");
    }
}
