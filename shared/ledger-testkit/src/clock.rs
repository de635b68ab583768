//! A clock that only a test moves.

use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use ledger_domain::Timestamp;
use ledger_domain::ports::{Clock, ClockUnknown};

/// A clock that stands still until it is moved. A pause moves it, so no test sleeps.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that stands at `at`.
    #[must_use]
    pub fn starting_at(at: Timestamp) -> Self {
        Self(AtomicI64::new(at.as_millis()))
    }

    /// Moves it by `millis`, back where negative.
    pub fn advance(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        Ok(Timestamp::from_millis(self.0.load(Ordering::SeqCst)))
    }

    async fn pause(&self, millis: u64) {
        self.advance(i64::try_from(millis).unwrap_or(i64::MAX));
        tokio::task::yield_now().await;
    }
}
