//! Order statistics of small samples.

/// A sample in ascending order, without NaN.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|v| !v.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The value below which this share of the values is (nearest rank). NaN without values.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
    }

    /// The middle value, or the mean of the two middle values.
    pub fn median(&self) -> f64 {
        let half = self.0.len() / 2;
        if self.0.len() % 2 == 1 || half == 0 {
            self.quantile(0.5)
        } else {
            f64::midpoint(self.0[half - 1], self.0[half])
        }
    }

    pub fn min(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    pub fn max(&self) -> f64 {
        self.0.last().copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        let sample = Sample::new([3.0, 1.0, f64::NAN, 2.0, 4.0]);
        assert_eq!(sample.len(), 4);
        assert!((sample.median() - 2.5).abs() < 1e-9);
        assert!((sample.quantile(0.5) - 2.0).abs() < 1e-9 && (sample.quantile(0.99) - 4.0).abs() < 1e-9);
        assert!((sample.min() - 1.0).abs() < 1e-9 && (sample.max() - 4.0).abs() < 1e-9);
        assert!(Sample::new([]).median().is_nan());
    }
}
