//! What the hot tier last said of itself, for the hot path.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use ledger_domain::ports::{HotHealth, HotTier, HotTrust, chain};

use crate::os_time::{OsTime, Reading, TimeSource};
use crate::single_flight::SingleFlight;

/// How often the health is read, and how old it may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotWatchSettings {
    /// Between two reads in the background, in milliseconds.
    pub refresh_ms: u64,
    /// The greatest age at which the health still counts, in milliseconds.
    pub max_age_ms: u64,
}

impl Default for HotWatchSettings {
    /// Every 2 s (DESIGN section 7); one read may be late or lost.
    fn default() -> Self {
        Self { refresh_ms: 2_000, max_age_ms: 5_000 }
    }
}

/// The hot tier's health as last read. Its age is judged when it is asked for, by wall clock and monotonic clock, so a
/// process that was frozen does not trust a tier that lost everything meanwhile.
pub struct HotWatch {
    hot: Arc<dyn HotTier>,
    settings: HotWatchSettings,
    time: Arc<dyn TimeSource>,
    known: RwLock<Known>,
    reading: SingleFlight<()>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    /// `None` before the first read, and while the tier does not answer.
    health: Option<(HotHealth, Reading)>,
    /// What was last logged, so that a change is logged once.
    reported: Option<Vec<String>>,
}

impl fmt::Debug for HotWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("HotWatch").field("settings", &self.settings).field("known", &*known).finish_non_exhaustive()
    }
}

impl HotWatch {
    /// A watch that trusts nothing until [`HotWatch::ensure_fresh`].
    #[must_use]
    pub fn new(hot: Arc<dyn HotTier>, settings: HotWatchSettings) -> Self {
        Self::with_time(hot, settings, Arc::new(OsTime))
    }

    fn with_time(hot: Arc<dyn HotTier>, settings: HotWatchSettings, time: Arc<dyn TimeSource>) -> Self {
        Self { hot, settings, time, known: RwLock::default(), reading: SingleFlight::new() }
    }

    /// Reads the health if it is unknown or too old. Callers share one read.
    pub async fn ensure_fresh(&self) {
        if self.fresh().is_none() {
            self.reading.run(|| self.read()).await;
        }
    }

    /// Reads the health again and again in a task of the current Tokio runtime, until the watch is dropped.
    pub fn refresh_in_background(self: &Arc<Self>) {
        let watch: Weak<Self> = Arc::downgrade(self);
        let pause = Duration::from_millis(self.settings.refresh_ms.max(1));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(watch) = watch.upgrade() else { return };
                watch.reading.run(|| watch.read()).await;
            }
        });
    }

    async fn read(&self) {
        // The time before the read: what happened after it is not in.
        let as_of = self.time.read();
        let (health, problems) = match self.hot.health().await {
            Ok(health) => {
                let problems = health.problems.clone();
                (Some((health, as_of)), problems)
            }
            Err(error) => (None, vec![chain(&error)]),
        };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.reported.as_ref() != Some(&problems) {
            if problems.is_empty() {
                tracing::info!("the hot tier vouches for its misses");
            } else {
                let problems = problems.join("; ");
                tracing::error!(
                    problems,
                    "ALARM: the hot tier cannot vouch for its misses; they are settled in the cold ledger"
                );
            }
        }
        *known = Known { health, reported: Some(problems) };
    }

    fn fresh(&self) -> Option<bool> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (health, as_of) = known.health.as_ref()?;
        let age_us = u64::try_from(self.time.read().age_us(*as_of)).unwrap_or(0);
        (age_us <= self.settings.max_age_ms.saturating_mul(1_000)).then_some(health.complete)
    }
}

impl HotTrust for HotWatch {
    fn vouches_for_misses(&self) -> bool {
        self.fresh() == Some(true)
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use ledger_domain::ports::{Amend, Begin, Begun, Count, Heal, Release, Replace, Settle, StoreError};
    use ledger_domain::transition::{Amended, Counted, Found, Swapped};
    use ledger_domain::{Slot, Timestamp};

    use super::*;
    use crate::clock::SystemClock;
    use crate::memory::MemoryHotTier;
    use crate::os_time::manual::ManualTime;

    /// A tier that says of itself what it is told to.
    struct Says {
        inner: MemoryHotTier,
        health: Mutex<Result<HotHealth, StoreError>>,
    }

    impl Says {
        fn set(&self, health: Result<HotHealth, StoreError>) {
            *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
        }
    }

    #[async_trait]
    impl HotTier for Says {
        async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
            self.inner.begin(requests).await
        }
        async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
            self.inner.settle(requests).await
        }
        async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
            self.inner.count(requests).await
        }
        async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
            self.inner.replace(requests).await
        }
        async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
            self.inner.amend(requests).await
        }
        async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
            self.inner.release(requests).await
        }
        async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
            self.inner.read(slots).await
        }
        async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
            self.inner.heal(requests).await
        }
        async fn time(&self) -> Result<Timestamp, StoreError> {
            self.inner.time().await
        }
        async fn health(&self) -> Result<HotHealth, StoreError> {
            self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }

    fn complete() -> Result<HotHealth, StoreError> {
        Ok(HotHealth { complete: true, problems: Vec::new() })
    }

    fn start() -> (Arc<Says>, Arc<ManualTime>, HotWatch) {
        let inner = MemoryHotTier::new(1, Arc::new(SystemClock));
        let says = Arc::new(Says { inner, health: Mutex::new(complete()) });
        let time = ManualTime::new(1_790_000_000_000);
        let watch = HotWatch::with_time(Arc::clone(&says) as _, HotWatchSettings::default(), Arc::clone(&time) as _);
        (says, time, watch)
    }

    #[tokio::test]
    async fn nothing_is_trusted_before_the_first_read_nor_when_the_tier_says_otherwise() {
        let (says, _time, watch) = start();
        assert!(!watch.vouches_for_misses());
        watch.ensure_fresh().await;
        assert!(watch.vouches_for_misses());
        says.set(Ok(HotHealth { complete: false, problems: vec!["evicted_keys is 3".to_owned()] }));
        watch.ensure_fresh().await;
        assert!(watch.vouches_for_misses(), "fresh: not read again");
        watch.read().await;
        assert!(!watch.vouches_for_misses());
    }

    #[tokio::test]
    async fn a_tier_that_does_not_answer_and_a_thawed_process_trust_nothing() {
        let (says, time, watch) = start();
        watch.ensure_fresh().await;
        time.pass_ms(5_000);
        assert!(watch.vouches_for_misses());
        time.set_wall_ms_by(1);
        assert!(!watch.vouches_for_misses(), "only the wall clock knows of the freeze");
        watch.ensure_fresh().await;
        assert!(watch.vouches_for_misses());
        says.set(Err(StoreError::did_not_happen("ask", "down")));
        watch.read().await;
        assert!(!watch.vouches_for_misses());
    }
}
