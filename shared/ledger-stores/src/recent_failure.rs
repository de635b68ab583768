//! A failure that is remembered for a while, so that not everybody waits for the next one.

use std::sync::{PoisonError, RwLock};

use crate::os_time::Reading;

/// How long most failures are remembered, in milliseconds: a source that is down costs one wait in this time, and one that is
/// back is found after it.
pub(crate) const RETRY_MS: u64 = 1_000;

/// The last failure, while it is recent.
#[derive(Debug)]
pub(crate) struct RecentFailure<E> {
    keep_us: i64,
    last: RwLock<Option<(E, Reading)>>,
}

impl<E: Clone> RecentFailure<E> {
    /// None yet; each is remembered for `keep_ms`.
    pub(crate) fn new(keep_ms: u64) -> Self {
        let keep_us = i64::try_from(keep_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
        Self { keep_us, last: RwLock::new(None) }
    }

    /// Remembers what an attempt came to at `now`.
    pub(crate) fn note<T>(&self, outcome: &Result<T, E>, now: Reading) {
        let failure = outcome.as_ref().err().map(|error| (error.clone(), now));
        *self.last.write().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// The last attempt's failure, where it failed and that is not long ago by either clock.
    pub(crate) fn at(&self, now: Reading) -> Option<E> {
        let last = self.last.read().unwrap_or_else(PoisonError::into_inner);
        let (error, when) = last.as_ref()?;
        (now.age_us(*when) < self.keep_us).then(|| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os_time::TimeSource as _;
    use crate::os_time::manual::ManualTime;

    #[test]
    fn a_failure_is_remembered_for_its_time_until_a_success_and_not_over_a_freeze() {
        let time = ManualTime::new(1_790_000_000_000);
        let failure = RecentFailure::new(RETRY_MS);
        failure.note(&Err::<(), _>("down"), time.read());
        time.pass_ms(999);
        assert_eq!(failure.at(time.read()), Some("down"));
        time.set_wall_ms_by(1);
        assert_eq!(failure.at(time.read()), None);
        failure.note(&Err::<(), _>("down"), time.read());
        failure.note(&Ok::<(), _>(()), time.read());
        assert_eq!(failure.at(time.read()), None);
    }
}
