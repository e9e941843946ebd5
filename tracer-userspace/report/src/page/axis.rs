//! The axis of time: converts times and columns to percent of its width.

use super::super::tally::Scale;
use super::words;

/// The axis has at least this many columns, so that a single moment is a thin mark.
const LEAST: i64 = 60;
/// About how many times are written at the axis.
const TICKS: i64 = 5;
/// Distances between ticks below a second, ms.
const STEPS_MS: [i64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];
/// The longer ones, s.
const STEPS_S: [i64; 22] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
    2_592_000, 31_536_000,
];

#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    first: i64,
    columns: i64,
    shift: u32,
    /// First and last moment, µs.
    pub(super) span: (i64, i64),
}

impl Axis {
    pub(super) fn new(scale: &Scale) -> Self {
        let span = scale.span.unwrap_or_default();
        let first = span.0 >> scale.shift;
        let columns = ((span.1 >> scale.shift) - first + 1).max(LEAST);
        Self { first, columns, shift: scale.shift, span }
    }

    /// Length of the time in view, µs.
    pub(super) const fn length(&self) -> i64 {
        self.span.1.saturating_sub(self.span.0)
    }

    /// The time of a column, µs.
    pub(super) const fn width_us(&self) -> i64 {
        1 << self.shift
    }

    /// When a column begins, µs.
    pub(super) const fn begin(&self, column: i64) -> i64 {
        column << self.shift
    }

    pub(super) const fn is_in(&self, us: i64, column: i64) -> bool {
        us >> self.shift == column
    }

    /// Left edge and width of a column, percent.
    pub(super) fn column(&self, column: i64) -> (String, String) {
        (percent(column - self.first, self.columns), percent(1, self.columns))
    }

    /// The middle of a column, percent.
    pub(super) fn middle(&self, column: i64) -> String {
        percent(2 * (column - self.first) + 1, 2 * self.columns)
    }

    /// How a text is aligned to this moment, so that it stays inside the axis.
    pub(super) fn anchor(&self, us: i64) -> &'static str {
        let (begin, shown) = (self.begin(self.first), self.columns << self.shift);
        match us.saturating_sub(begin) / (shown / 20).max(1) {
            0 => "start",
            1..19 => "middle",
            _ => "end",
        }
    }

    /// A moment, percent. A moment outside of the view is at the edge.
    pub(super) fn moment(&self, us: i64) -> String {
        let begin = self.begin(self.first);
        let end = begin.saturating_add(self.columns << self.shift);
        percent(us.clamp(begin, end) - begin, end - begin)
    }

    /// The times that are written at the axis.
    pub(super) fn ticks(&self) -> Vec<(i64, String)> {
        let shown = self.columns << self.shift;
        let mut steps = STEPS_MS.map(|it| it * 1000).into_iter().chain(STEPS_S.map(|it| it * 1_000_000));
        let step = steps.find(|step| shown / step <= TICKS).unwrap_or(shown / TICKS);
        let begin = self.begin(self.first);
        let first = begin.div_euclid(step) * step + step;
        let format = match step {
            0..1_000_000 => "%H:%M:%S%.3f",
            1_000_000..60_000_000 => "%H:%M:%S",
            60_000_000..86_400_000_000 if shown < 86_400_000_000 => "%H:%M",
            60_000_000..86_400_000_000 => "%m-%d %H:%M",
            _ => "%Y-%m-%d",
        };
        let at = |n: i64| first.saturating_add(n.saturating_mul(step));
        (0..=TICKS).map(at).take_while(|&us| us < begin + shown).map(|us| (us, words::at(us, format))).collect()
    }
}

/// `a / b`, percent, two decimals.
#[expect(clippy::cast_precision_loss, reason = "for a place on a screen")]
fn percent(a: i64, b: i64) -> String {
    format!("{:.2}%", a as f64 * 100.0 / b as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(times: &[i64]) -> Axis {
        let mut scale = Scale::default();
        times.iter().for_each(|&us| scale.see(us));
        Axis::new(&scale)
    }

    #[test]
    fn one_moment_is_a_mark_at_the_left() {
        let axis = axis(&[1_767_323_045_678_901]);
        assert_eq!(axis.column(1_767_323_045_678_901 >> 10), ("0.00%".into(), "1.67%".into()));
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let begin = 1_767_323_045_678_901;
        for length in [0, 1_000_000, 17_000_000, 343_000_000, 9_000_000_000, 86_400_000_000, 900 * 86_400_000_000] {
            let axis = axis(&[begin, begin + length]);
            let ticks = axis.ticks();
            assert!((2..=6).contains(&ticks.len()), "{length}: {ticks:?}");
            let last = axis.moment(ticks[ticks.len() - 1].0);
            assert!(last.len() <= 6, "{length}: {last}");
        }
    }

    #[test]
    fn texts_stay_inside() {
        let axis = axis(&[0, 7_200_000_000]);
        let anchors = [0, 3_600_000_000, 7_200_000_000].map(|us| axis.anchor(us));
        assert_eq!(anchors, ["start", "middle", "end"]);
    }

    #[test]
    fn years_far_apart_do_no_harm() {
        let axis = axis(&[i64::MIN >> 4, i64::MAX >> 4]);
        assert!(axis.ticks().len() <= 6);
        assert_eq!(axis.moment(i64::MAX), "100.00%");
    }
}
