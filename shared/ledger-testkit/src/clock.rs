//! Time and randomness that a test holds in its hand.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use ledger_domain::Timestamp;
use ledger_domain::ports::{Clock, ClockUnknown, Entropy};

/// A clock that moves only when it is told to, so that a test never sleeps.
#[derive(Debug)]
pub struct ManualClock {
    now_ms: AtomicI64,
    unknown: AtomicBool,
}

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self { now_ms: AtomicI64::new(start.as_millis()), unknown: AtomicBool::new(false) }
    }

    /// Moves on by `millis`.
    pub fn advance(&self, millis: u64) {
        self.now_ms.fetch_add(i64::try_from(millis).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// From now on the time is (not) known.
    pub fn set_unknown(&self, unknown: bool) {
        self.unknown.store(unknown, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        if self.unknown.load(Ordering::SeqCst) {
            return Err(ClockUnknown);
        }
        Ok(Timestamp::from_millis(self.now_ms.load(Ordering::SeqCst)))
    }

    /// Moves the clock on by `millis` and lets other tasks run.
    async fn pause(&self, millis: u64) {
        self.advance(millis);
        tokio::task::yield_now().await;
    }
}

/// Randomness that a seed repeats. Not for production: it can be guessed.
#[derive(Debug)]
pub struct SeededEntropy {
    state: AtomicU64,
}

impl SeededEntropy {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }

    /// The next number (SplitMix64, Steele, Lea and Flood 2014).
    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut z = self.state.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Whether something that happens once in `times` happens.
    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

impl Entropy for SeededEntropy {
    fn eight_bytes(&self) -> [u8; 8] {
        self.next().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_entropy_is_the_published_sequence() {
        // SplitMix64 from seed 1234567, as in the generator's reference tests.
        let entropy = SeededEntropy::new(1_234_567);
        assert_eq!([entropy.next(), entropy.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[tokio::test]
    async fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(Timestamp::from_millis(1_000));
        assert_eq!(clock.now(), Ok(Timestamp::from_millis(1_000)));
        clock.advance(5);
        clock.pause(10).await;
        assert_eq!(clock.now(), Ok(Timestamp::from_millis(1_015)));
        clock.set_unknown(true);
        assert_eq!(clock.now(), Err(ClockUnknown));
    }
}
