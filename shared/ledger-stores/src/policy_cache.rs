//! Scope policies in memory, for the hot path.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use ledger_domain::ports::{ControlPlane, PolicySource, StoreError};
use ledger_domain::{Policy, PolicySet, Scope};

use crate::os_time::{OsTime, Reading, TimeSource};
use crate::recent_failure::{RETRY_MS, RecentFailure};
use crate::single_flight::SingleFlight;

/// How often policies are read, and how old they may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyCacheSettings {
    /// Between two reads in the background, in milliseconds.
    pub refresh_ms: u64,
    /// The greatest age at which policies are still used, in milliseconds.
    pub max_age_ms: u64,
    /// How long a read may take, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for PolicyCacheSettings {
    /// Every 30 s; used for up to 15 minutes while the control plane does not answer. A read takes some milliseconds; the first
    /// one, of many entries and with a connection to make, up to a second.
    fn default() -> Self {
        Self { refresh_ms: 30_000, max_age_ms: 15 * 60_000, timeout_ms: 3_000 }
    }
}

/// The policies of a [`ControlPlane`] as last read.
///
/// A read that fails leaves the last known ones in use up to their greatest age. Age is judged when a policy is asked for, by
/// the greater of wall-clock and monotonic time since the read began, so a process that was frozen does not decide by what it
/// knew before.
pub struct PolicyCache {
    control_plane: Arc<dyn ControlPlane>,
    settings: PolicyCacheSettings,
    time: Arc<dyn TimeSource>,
    known: RwLock<Option<Known>>,
    reading: SingleFlight<Result<(), StoreError>>,
    failing: AtomicBool,
    failure: RecentFailure<StoreError>,
}

#[derive(Clone)]
struct Known {
    policies: Arc<PolicySet>,
    /// When the read began: what was written after it is not in.
    as_of: Reading,
}

impl fmt::Debug for PolicyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyCache").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl PolicyCache {
    /// An empty cache: no policy until [`PolicyCache::load`].
    #[must_use]
    pub fn new(control_plane: Arc<dyn ControlPlane>, settings: PolicyCacheSettings) -> Self {
        Self::with_time(control_plane, settings, Arc::new(OsTime))
    }

    fn with_time(
        control_plane: Arc<dyn ControlPlane>,
        settings: PolicyCacheSettings,
        time: Arc<dyn TimeSource>,
    ) -> Self {
        Self {
            control_plane,
            settings,
            time,
            known: RwLock::new(None),
            reading: SingleFlight::new(),
            failing: AtomicBool::new(false),
            failure: RecentFailure::new(RETRY_MS),
        }
    }

    /// Reads the policies now, joining a read that is under way.
    ///
    /// # Errors
    /// The control plane's; what was known stays known. At start this is fatal: fail closed.
    pub async fn load(&self) -> Result<(), StoreError> {
        self.reading.run(|| self.read()).await
    }

    /// Reads the policies if they are unknown or too old; what an edge calls before it refuses. Callers share one read, and
    /// for a second its failure, so that not each of them waits for a control plane that does not answer.
    ///
    /// # Errors
    /// As [`PolicyCache::load`].
    pub async fn ensure_fresh(&self) -> Result<(), StoreError> {
        if self.current().is_some() {
            return Ok(());
        }
        match self.failure.at(self.time.read()) {
            Some(error) => Err(error),
            None => self.load().await,
        }
    }

    /// Reads the policies again and again in a task of the current Tokio runtime, until the cache is dropped.
    pub fn refresh_in_background(self: &Arc<Self>) {
        let cache: Weak<Self> = Arc::downgrade(self);
        let pause = Duration::from_millis(self.settings.refresh_ms.max(1));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(cache) = cache.upgrade() else { return };
                // A failure is logged where it was seen, and the last known policies stay.
                let _ = cache.load().await;
            }
        });
    }

    async fn read(&self) -> Result<(), StoreError> {
        let as_of = self.time.read();
        let timeout_ms = self.settings.timeout_ms;
        let outcome = tokio::time::timeout(Duration::from_millis(timeout_ms), self.control_plane.policies()).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(StoreError::did_not_happen("read policies", format!("no answer within {timeout_ms} ms")))
        });
        self.failure.note(&outcome, self.time.read());
        let failed = outcome.is_err();
        let changed = self.failing.swap(failed, Ordering::SeqCst) != failed;
        match outcome {
            Ok(policies) => {
                if changed {
                    tracing::info!(entries = policies.len(), "policies are read again");
                }
                let known = Known { policies: Arc::new(policies), as_of };
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
                Ok(())
            }
            Err(error) => {
                if changed {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, cause, "policies cannot be read; the last known are used while fresh enough");
                }
                Err(error)
            }
        }
    }

    fn current(&self) -> Option<Arc<PolicySet>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let age_us = u64::try_from(self.time.read().age_us(known.as_of)).unwrap_or(0);
        (age_us <= self.settings.max_age_ms.saturating_mul(1_000)).then_some(known.policies)
    }
}

impl PolicySource for PolicyCache {
    fn policy(&self, scope: &Scope) -> Option<Policy> {
        self.current().map(|policies| policies.resolve(scope))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use async_trait::async_trait;
    use ledger_domain::{PolicyFields, Tenant};

    use super::*;
    use crate::os_time::manual::ManualTime;

    /// Each read gives tenant `t1` the number of the read as its window; it fails while `down`, and `hangs`.
    #[derive(Default)]
    struct Scripted {
        reads: AtomicU64,
        down: AtomicBool,
        hangs: AtomicBool,
    }

    #[async_trait]
    impl ControlPlane for Scripted {
        async fn policies(&self) -> Result<PolicySet, StoreError> {
            let read = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
            tokio::task::yield_now().await;
            if self.hangs.load(Ordering::SeqCst) {
                return std::future::pending().await;
            }
            if self.down.load(Ordering::SeqCst) {
                return Err(StoreError::did_not_happen("read policies", "down"));
            }
            let mut policies = PolicySet::default();
            let fields = PolicyFields { window_default_seconds: Some(read), ..PolicyFields::default() };
            policies.set_tenant(&Tenant::parse("t1").unwrap(), fields).unwrap();
            Ok(policies)
        }

        async fn cold_sessions(&self, _: usize) -> Result<Vec<ledger_domain::ports::ColdSession>, StoreError> {
            unreachable!("nobody looks at sessions")
        }

        async fn open_cold_session(&self, _: &ledger_domain::ports::ColdSession) -> Result<(), StoreError> {
            unreachable!("nobody opens a session")
        }

        async fn renew_cold_session(
            &self,
            _: &ledger_domain::ports::ColdSession,
            _: ledger_domain::Timestamp,
        ) -> Result<bool, StoreError> {
            unreachable!("nobody renews a session")
        }

        async fn remove_cold_session(&self, _: &ledger_domain::ports::ColdSession) -> Result<bool, StoreError> {
            unreachable!("only the keeper removes sessions")
        }

        async fn keeper_state(&self) -> Result<Option<ledger_domain::ports::KeeperState>, StoreError> {
            unreachable!("only the keeper asks for its state")
        }

        async fn save_keeper_state(&self, _: &ledger_domain::ports::KeeperState) -> Result<bool, StoreError> {
            unreachable!("only the keeper writes its state")
        }
    }

    const SETTINGS: PolicyCacheSettings =
        PolicyCacheSettings { refresh_ms: 1_000, max_age_ms: 60_000, timeout_ms: 3_000 };

    fn cache() -> (Arc<Scripted>, Arc<ManualTime>, Arc<PolicyCache>) {
        let (control_plane, time) = (Arc::new(Scripted::default()), ManualTime::new(1_790_000_000_000));
        let cache = PolicyCache::with_time(Arc::clone(&control_plane) as _, SETTINGS, Arc::clone(&time) as _);
        (control_plane, time, Arc::new(cache))
    }

    /// Which read the policy in use is of.
    fn in_use(cache: &PolicyCache) -> Option<u64> {
        cache.policy(&Scope::parse("t1:as4", None).unwrap()).map(|policy| policy.window_default_seconds)
    }

    #[tokio::test]
    async fn nothing_is_known_before_the_first_read_and_a_failed_one_says_so() {
        let (control_plane, _time, cache) = cache();
        assert_eq!(in_use(&cache), None);
        control_plane.down.store(true, Ordering::SeqCst);
        assert!(cache.load().await.is_err());
        assert_eq!(in_use(&cache), None);
    }

    #[tokio::test]
    async fn the_last_known_are_used_up_to_their_age_and_not_a_moment_longer() {
        let (control_plane, time, cache) = cache();
        cache.load().await.unwrap();
        control_plane.down.store(true, Ordering::SeqCst);
        time.pass_ms(60_000);
        assert!(cache.load().await.is_err());
        assert_eq!(in_use(&cache), Some(1));
        time.pass_ms(1);
        assert_eq!(in_use(&cache), None);
    }

    #[tokio::test]
    async fn a_freeze_that_only_one_clock_saw_is_an_age() {
        let (_control_plane, time, cache) = cache();
        cache.load().await.unwrap();
        time.set_wall_ms_by(60_001);
        assert_eq!(in_use(&cache), None, "the monotonic clock stood still");
        cache.load().await.unwrap();
        time.set_wall_ms_by(-3_600_000);
        assert_eq!(in_use(&cache), Some(2));
        time.pass_ms(60_001);
        assert_eq!(in_use(&cache), None, "the wall clock was set back");
    }

    #[tokio::test]
    async fn age_counts_from_the_beginning_of_the_read() {
        let (_control_plane, time, cache) = cache();
        let mut load = Box::pin(cache.load());
        assert!(futures::poll!(&mut load).is_pending());
        time.pass_ms(60_001);
        load.await.unwrap();
        assert_eq!(in_use(&cache), None);
    }

    #[tokio::test]
    async fn a_thawed_process_reads_once_for_all_who_ask() {
        let (control_plane, time, cache) = cache();
        cache.load().await.unwrap();
        cache.ensure_fresh().await.unwrap();
        assert_eq!(control_plane.reads.load(Ordering::SeqCst), 1, "fresh: no read");
        time.set_wall_ms_by(3_600_000);
        for outcome in futures::future::join_all((0..20).map(|_| cache.ensure_fresh())).await {
            outcome.unwrap();
        }
        assert_eq!(control_plane.reads.load(Ordering::SeqCst), 2);
        assert_eq!(in_use(&cache), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_background_reads_at_its_pace_keeps_the_last_known_and_ends_with_the_cache() {
        let (control_plane, _time, cache) = cache();
        cache.load().await.unwrap();
        cache.refresh_in_background();
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        assert_eq!(in_use(&cache), Some(3));
        control_plane.down.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        assert_eq!(in_use(&cache), Some(3));
        control_plane.down.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        assert_eq!(in_use(&cache), Some(6));
        drop(cache);
        tokio::time::sleep(Duration::from_millis(10_000)).await;
        assert_eq!(control_plane.reads.load(Ordering::SeqCst), 6);
    }

    #[tokio::test]
    async fn a_failure_is_shared_for_a_second_by_all_who_ask_and_then_tried_again() {
        let (control_plane, time, cache) = cache();
        control_plane.down.store(true, Ordering::SeqCst);
        for outcome in futures::future::join_all((0..20).map(|_| cache.ensure_fresh())).await {
            assert!(outcome.is_err());
        }
        control_plane.down.store(false, Ordering::SeqCst);
        time.pass_ms(999);
        assert!(cache.ensure_fresh().await.is_err());
        assert_eq!(control_plane.reads.load(Ordering::SeqCst), 1);
        time.pass_ms(1);
        cache.ensure_fresh().await.unwrap();
        assert_eq!(in_use(&cache), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_control_plane_that_hangs_costs_one_wait() {
        let (control_plane, _time, cache) = cache();
        control_plane.hangs.store(true, Ordering::SeqCst);
        let before = tokio::time::Instant::now();
        for _ in 0..20 {
            assert!(cache.ensure_fresh().await.is_err());
        }
        assert_eq!(before.elapsed(), Duration::from_millis(3_000));
        control_plane.hangs.store(false, Ordering::SeqCst);
        cache.load().await.unwrap();
        cache.ensure_fresh().await.unwrap();
        assert_eq!(in_use(&cache), Some(2), "what the background found counts at once");
    }
}
