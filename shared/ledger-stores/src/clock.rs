//! The ledger clock, the system clock and the operating system's randomness.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use ledger_domain::ports::{Clock, ClockUnknown, ColdLedger, Entropy, HotTier, StoreError};
use ledger_domain::{EPSILON_MS, Timestamp};

use crate::os_time::{OsTime, Reading, TimeSource};
use crate::recent_failure::{RETRY_MS, RecentFailure};
use crate::single_flight::SingleFlight;

const EPSILON_US: i64 = EPSILON_MS * 1_000;
/// A reference's time is cut to whole milliseconds: on average half of one is missing, and that half is doubt.
const HALF_MS_US: i64 = 500;
/// Samples of one measurement; the one with the shortest round trip counts.
const SAMPLES: usize = 5;
/// A round trip longer than 2 ε cannot give the offset to within ε; such a sample is not waited for.
const SAMPLE_TIMEOUT_MS: u64 = EPSILON_MS.unsigned_abs() * 2;
/// The first sample of the last reference may have to make a connection, and there is none to fall back on: it is waited for
/// longer, and the others count.
const LAST_RESORT_TIMEOUT_MS: u64 = 1_000;

/// Whose time is the ledger's.
#[async_trait]
pub trait TimeReference: Send + Sync {
    /// The reference's time, read somewhere between the call and its answer.
    ///
    /// # Errors
    /// [`StoreError`] where it does not answer.
    async fn time(&self) -> Result<Timestamp, StoreError>;
}

/// A hot tier's clock as the reference.
pub struct HotTime(pub Arc<dyn HotTier>);

/// A cold ledger's clock as the reference.
pub struct ColdTime(pub Arc<dyn ColdLedger>);

impl fmt::Debug for HotTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HotTime")
    }
}

impl fmt::Debug for ColdTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ColdTime")
    }
}

#[async_trait]
impl TimeReference for HotTime {
    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.0.time().await
    }
}

#[async_trait]
impl TimeReference for ColdTime {
    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.0.time().await
    }
}

/// How often the offset is measured, and how old it may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerClockSettings {
    /// Between two measurements in the background, in milliseconds.
    pub refresh_ms: u64,
    /// The greatest age at which an offset is still used, in milliseconds. A quartz drifts by some 50 ppm, 15 ms in five
    /// minutes.
    pub max_age_ms: u64,
}

impl Default for LedgerClockSettings {
    /// Each minute; used for up to five.
    fn default() -> Self {
        Self { refresh_ms: 60_000, max_age_ms: 5 * 60_000 }
    }
}

/// The process clock corrected by its measured offset to a reference.
///
/// The offset is that of the sample with the shortest round trip, sure to half of it. [`Clock::now`] answers while this doubt
/// and what the wall clock has since strayed from the monotonic one are together within ε, and the offset is not older than
/// its greatest age by either clock: after a freeze or a jump the time is unknown until it is measured again
/// ([`LedgerClock::ensure_known`]).
pub struct LedgerClock {
    /// In the order in which they are asked: the first that gives the time to within ε counts.
    references: Vec<Arc<dyn TimeReference>>,
    settings: LedgerClockSettings,
    time: Arc<dyn TimeSource>,
    offset: RwLock<Option<Offset>>,
    measuring: SingleFlight<Result<(), ClockUnknown>>,
    failing: AtomicBool,
    failure: RecentFailure<ClockUnknown>,
}

#[derive(Debug, Clone, Copy)]
struct Offset {
    /// What to add to the wall clock.
    offset_us: i64,
    /// How far that may be wrong.
    doubt_us: i64,
    /// When it was right.
    as_of: Reading,
}

impl fmt::Debug for LedgerClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offset = self.offset.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("LedgerClock")
            .field("settings", &self.settings)
            .field("offset", &*offset)
            .finish_non_exhaustive()
    }
}

impl LedgerClock {
    /// A clock that knows nothing until [`LedgerClock::measure`]. `references` are asked in their order, the hot tier first.
    #[must_use]
    pub fn new(references: Vec<Arc<dyn TimeReference>>, settings: LedgerClockSettings) -> Self {
        Self::with_time(references, settings, Arc::new(OsTime))
    }

    fn with_time(
        references: Vec<Arc<dyn TimeReference>>,
        settings: LedgerClockSettings,
        time: Arc<dyn TimeSource>,
    ) -> Self {
        Self {
            references,
            settings,
            time,
            offset: RwLock::new(None),
            measuring: SingleFlight::new(),
            failing: AtomicBool::new(false),
            failure: RecentFailure::new(RETRY_MS),
        }
    }

    /// Measures the offset now, joining a measurement that is under way.
    ///
    /// # Errors
    /// [`ClockUnknown`] where no reference gave its time to within ε. An offset known before stays in use up to its age.
    pub async fn measure(&self) -> Result<(), ClockUnknown> {
        self.measuring
            .run(|| async {
                let outcome = self.measure_alone().await;
                self.failure.note(&outcome, self.time.read());
                outcome
            })
            .await
    }

    /// Measures the offset if the time is unknown; what an edge calls before it refuses. Callers share one measurement, and for
    /// a second its failure, so that not each of them waits for references that do not answer.
    ///
    /// # Errors
    /// As [`LedgerClock::measure`].
    pub async fn ensure_known(&self) -> Result<(), ClockUnknown> {
        if self.now().is_ok() {
            return Ok(());
        }
        match self.failure.at(self.time.read()) {
            Some(unknown) => Err(unknown),
            None => self.measure().await,
        }
    }

    /// Measures again and again in a task of the current Tokio runtime, until the clock is dropped.
    pub fn refresh_in_background(self: &Arc<Self>) {
        let clock: Weak<Self> = Arc::downgrade(self);
        let pause = Duration::from_millis(self.settings.refresh_ms.max(1));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(clock) = clock.upgrade() else { return };
                // A failure is logged where it was seen, and the last offset stays in use up to its age.
                let _ = clock.measure().await;
            }
        });
    }

    async fn measure_alone(&self) -> Result<(), ClockUnknown> {
        let mut last_error = None;
        let mut found = None;
        for (index, reference) in self.references.iter().enumerate() {
            let is_last = index + 1 == self.references.len();
            let first_timeout_ms = if is_last { LAST_RESORT_TIMEOUT_MS } else { SAMPLE_TIMEOUT_MS };
            match self.sample(reference.as_ref(), first_timeout_ms).await {
                Ok(offset) if offset.doubt_us <= EPSILON_US => {
                    found = Some(offset);
                    break;
                }
                Ok(offset) => last_error = Some(format!("known to {} ms only", offset.doubt_us / 1_000)),
                Err(problem) => last_error = Some(problem),
            }
        }
        let changed = self.failing.swap(found.is_none(), Ordering::SeqCst) != found.is_none();
        match found {
            Some(offset) => {
                if changed {
                    tracing::info!(offset_ms = offset.offset_us / 1_000, "the ledger's time is measured again");
                }
                *self.offset.write().unwrap_or_else(PoisonError::into_inner) = Some(offset);
                Ok(())
            }
            None => {
                if changed {
                    tracing::error!(problem = last_error, "the ledger's time cannot be measured");
                }
                Err(ClockUnknown)
            }
        }
    }

    /// The best of several samples; an error, in words, where the reference answers none.
    async fn sample(&self, reference: &dyn TimeReference, first_timeout_ms: u64) -> Result<Offset, String> {
        let mut best: Option<Offset> = None;
        let mut problem = String::new();
        for sample in 0..SAMPLES {
            let timeout_ms = if sample == 0 { first_timeout_ms } else { SAMPLE_TIMEOUT_MS };
            let before = self.time.read();
            let answer = tokio::time::timeout(Duration::from_millis(timeout_ms), reference.time()).await;
            let after = self.time.read();
            match answer {
                Ok(Ok(reference_time)) => {
                    let sample = Offset::of(before, reference_time, after);
                    if best.is_none_or(|best| sample.doubt_us < best.doubt_us) {
                        best = Some(sample);
                    }
                }
                Ok(Err(error)) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    problem = format!("{error}: {cause}");
                    // One that is down is not asked five times.
                    break;
                }
                Err(_) => {
                    problem = format!("no answer within {timeout_ms} ms");
                    // Nor is one that does not answer waited for five times, while the next may tell the time.
                    break;
                }
            }
        }
        best.ok_or(problem)
    }
}

impl Offset {
    /// The reference's time was read between two of ours, so it belongs to their middle, give or take half of the way. The
    /// way is the longer by either clock: a jump of the wall clock in between is doubt too.
    fn of(before: Reading, reference: Timestamp, after: Reading) -> Self {
        let way_us = after.age_us(before).saturating_add(after.divergence_us(before));
        let middle_us = before.wall_us.saturating_add(after.wall_us.saturating_sub(before.wall_us) / 2);
        let offset_us = reference.as_millis().saturating_mul(1_000) + HALF_MS_US - middle_us;
        Self { offset_us, doubt_us: way_us.saturating_add(1) / 2 + HALF_MS_US, as_of: after }
    }

    fn time_at(self, now: Reading, max_age_ms: u64) -> Result<Timestamp, ClockUnknown> {
        let max_age_us = i64::try_from(max_age_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
        let doubt_us = self.doubt_us.saturating_add(now.divergence_us(self.as_of));
        if now.age_us(self.as_of) > max_age_us || doubt_us > EPSILON_US {
            return Err(ClockUnknown);
        }
        Ok(Timestamp::from_millis(now.wall_us.saturating_add(self.offset_us).div_euclid(1_000)))
    }
}

#[async_trait]
impl Clock for LedgerClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        let offset = (*self.offset.read().unwrap_or_else(PoisonError::into_inner)).ok_or(ClockUnknown)?;
        offset.time_at(self.time.read(), self.settings.max_age_ms)
    }

    async fn pause(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// The process's own clock, for embedded tiers in one process: they have no other time, so the offset is zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        Ok(Timestamp::from_millis(OsTime.read().wall_us.div_euclid(1_000)))
    }

    async fn pause(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// The operating system's randomness, asked each time: no buffer that a copy of the process (a fork, a restored snapshot)
/// would share. A call costs half a microsecond, so a check asks once for all it needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    /// # Panics
    /// Where the operating system has no randomness. Ids that can be guessed, or repeat, are worse than a failed request.
    fn eight_bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        fill(&mut bytes);
        bytes
    }

    /// # Panics
    /// As [`OsEntropy::eight_bytes`].
    fn many_eight_bytes(&self, count: usize) -> Vec<[u8; 8]> {
        let mut many = vec![[0; 8]; count];
        fill(many.as_flattened_mut());
        many
    }
}

fn fill(bytes: &mut [u8]) {
    if let Err(e) = getrandom::fill(bytes) {
        panic!("the operating system gives no randomness: {e}");
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;

#[cfg(all(test, feature = "redis"))]
#[path = "clock_redis_tests.rs"]
mod redis_tests;
