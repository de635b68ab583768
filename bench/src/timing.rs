//! Clocks, numbers made of many, and numbers spread.

use std::future::Future;
use std::time::Instant;

/// Now, by the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "a bench measures real time; this is its one place")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A median with what lay around it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    /// The middle one.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of at least one number.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first().copied(), sorted.last().copied()) else {
            panic!("nothing was measured");
        };
        Self { median: f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]), min, max }
    }
}

/// What pairs of samples gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pairs {
    ours: Vec<f64>,
    bare: Vec<f64>,
}

impl Pairs {
    /// Measures `count` pairs, after one that only warms up. Who goes first alternates, so a machine that grows slower or
    /// faster favours nobody.
    pub(crate) async fn measure<O, B>(count: usize, mut ours: impl FnMut() -> O, mut bare: impl FnMut() -> B) -> Self
    where
        O: Future<Output = f64>,
        B: Future<Output = f64>,
    {
        let mut pairs = Self::default();
        ours().await;
        bare().await;
        for index in 0..count {
            if index % 2 == 0 {
                pairs.bare.push(bare().await);
                pairs.ours.push(ours().await);
            } else {
                pairs.ours.push(ours().await);
                pairs.bare.push(bare().await);
            }
        }
        pairs
    }

    /// Adds a pair measured elsewhere.
    pub(crate) fn push(&mut self, ours: f64, bare: f64) {
        self.ours.push(ours);
        self.bare.push(bare);
    }

    /// Ours to the bare one's, pair by pair.
    pub(crate) fn ratio(&self) -> Spread {
        Spread::of(self.ours.iter().zip(&self.bare).map(|(ours, bare)| ours / bare))
    }

    /// Our side's numbers.
    pub(crate) fn ours(&self) -> Spread {
        Spread::of(self.ours.iter().copied())
    }

    /// The bare side's numbers.
    pub(crate) fn bare(&self) -> Spread {
        Spread::of(self.bare.iter().copied())
    }
}

/// The number below which `per_mille` of a thousand lie.
pub(crate) fn percentile(sorted: &[f64], per_mille: usize) -> f64 {
    let at = (sorted.len() * per_mille / 1_000).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().expect("something was measured")
}

/// Spreads what counts up over all 64 bits (the finisher of SplitMix64), so that keys come in no order.
pub(crate) fn spread(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
