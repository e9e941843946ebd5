//! How often the node is read: soon after it changed, but for a tenth of a CPU at most in the long run.
//!
//! Any pod can make it change all the time, by listening or with namespaces of its own. A reading takes some 10 ms on a
//! small node, and more than 100 where there are thousands of processes or Services.

use std::time::{Duration, Instant};

/// The shortest time between two readings, however often the node changes.
const AT_MOST_EVERY: Duration = Duration::from_millis(500);
/// Each reading uses up this multiple of its CPU time, so that readings take a tenth of a CPU.
const TIMES: u32 = 10;
/// How much time may be used up in advance, so that a node where all pods start at once is read at each change.
const AHEAD: Duration = Duration::from_secs(5);

/// When the node may be read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadingPace {
    /// Until then the time for readings is used up.
    used: Instant,
    /// The earliest time of the next reading.
    pub(super) next: Instant,
    /// Between two readings.
    pause: Duration,
}

impl ReadingPace {
    /// The first reading may come at once.
    pub(super) const fn new(now: Instant) -> Self {
        Self { used: now, next: now, pause: AT_MOST_EVERY }
    }

    /// The same limit, without a pause between readings: for small readings.
    pub(super) const fn without_pause(now: Instant) -> Self {
        Self { used: now, next: now, pause: Duration::ZERO }
    }

    /// Records a reading that took this much CPU time.
    pub(super) fn read(&mut self, now: Instant, took: Duration) {
        // Readings that did not wait for `next` use up no more than is there.
        self.used = self.used.clamp(now, now + AHEAD) + took * TIMES;
        let paid = self.used.checked_sub(AHEAD).unwrap_or(now);
        self.next = paid.max(now + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a node that changes all the time is read in each of these minutes.
    fn readings(took_ms: u64, minutes: usize) -> Vec<u32> {
        let began = Instant::now();
        let mut pace = ReadingPace::new(began);
        let mut counts = vec![0; minutes];
        while let Some(count) = counts.get_mut((pace.next.duration_since(began).as_secs() / 60) as usize) {
            *count += 1;
            let took = Duration::from_millis(took_ms);
            pace.read(pace.next + took, took);
        }
        counts
    }

    #[test]
    fn what_takes_long_is_not_read_all_the_time() {
        let [first, second] = readings(200, 2)[..] else { panic!("two minutes") };
        assert!((30..=34).contains(&first) && (29..=30).contains(&second), "{first}, then {second}");
        let quick = readings(10, 2);
        assert!(quick.iter().all(|count| (116..=119).contains(count)), "{quick:?}");
    }

    #[test]
    fn small_readings_follow_each_other_and_take_no_more() {
        let began = Instant::now();
        let mut pace = ReadingPace::without_pause(began);
        let count = (1..).take_while(|_| {
            let now = pace.next + Duration::from_millis(1);
            pace.read(now, Duration::from_millis(1));
            now.duration_since(began) < Duration::from_secs(10)
        });
        assert!((1_450..=1_600).contains(&count.count()), "a tenth of it, and what was used ahead");
    }

    /// While few attempts wait, their targets are read whatever the pace is.
    #[test]
    fn readings_out_of_turn_delay_the_next_one_by_the_time_of_one() {
        let began = Instant::now();
        let mut pace = ReadingPace::without_pause(began);
        let took = Duration::from_millis(100);
        (1..=600).for_each(|n| pace.read(began + n * took, took));
        assert_eq!(pace.next, began + 600 * took + took * TIMES);
    }

    #[test]
    fn a_burst_of_changes_is_read_as_it_comes() {
        let began = Instant::now();
        let mut pace = ReadingPace::new(began);
        for n in 1..=4_u32 {
            let now = pace.next;
            pace.read(now, Duration::from_millis(150));
            assert_eq!(pace.next, now + AT_MOST_EVERY, "after {n} readings");
        }
    }
}
