//! What the hot tier last said of itself, and whether a cold session stands, for the hot path.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures::future::join3;
use ledger_domain::FillPass;
use ledger_domain::ports::{ControlPlane, HotHealth, HotTier, HotTrust, StoreError, WarmMarker, chain};

use crate::os_time::{OsTime, Reading, TimeSource};
use crate::single_flight::SingleFlight;

/// After this pause what the keeper says and what its tier says are compared again where they differ, in milliseconds: it
/// writes the one after the other.
const COMPARE_AGAIN_MS: u64 = 50;

/// How often both are read, and how old they may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotWatchSettings {
    /// Between two reads in the background, in milliseconds.
    pub refresh_ms: u64,
    /// The greatest age at which what was read still counts, in milliseconds. A loss, or a cold session of another process, is
    /// noticed within this time.
    pub max_age_ms: u64,
    /// How long each of both has to answer, in milliseconds; what does not is not complete.
    pub timeout_ms: u64,
}

impl Default for HotWatchSettings {
    /// Never older than the 2 s of DESIGN section 7, so read each second: a read that takes its whole time is still in time.
    fn default() -> Self {
        Self { refresh_ms: 1_000, max_age_ms: 2_000, timeout_ms: 500 }
    }
}

/// Whether the hot tier is complete, as last read: its health, that its marker is of the keeper's last pass, and that no cold
/// session stands. And whether it is in place: that its marker, warm or not, is of that pass.
///
/// The age is judged when it is asked for, by wall clock and monotonic clock, so a process that was frozen does not trust a
/// tier that lost everything meanwhile. What could not be read is remembered as not complete, which is always safe: nobody
/// waits for a second read of a source that does not answer.
pub struct HotWatch(Arc<Watched>);

struct Watched {
    hot: Arc<dyn HotTier>,
    control_plane: Arc<dyn ControlPlane>,
    settings: HotWatchSettings,
    time: Arc<dyn TimeSource>,
    known: RwLock<Known>,
    reading: SingleFlight<()>,
    is_reading_aside: AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct Known {
    /// `None` before the first read.
    last: Option<Read>,
    /// What was last logged, so that a change is logged once.
    reported: Option<Vec<String>>,
}

/// What came of a read.
#[derive(Debug, Clone, Copy)]
struct Read {
    is_complete: bool,
    /// As last read where both said something of it, this time or earlier.
    is_in_place: bool,
    /// Whether both answered.
    answered: bool,
    as_of: Reading,
}

impl fmt::Debug for HotWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("HotWatch").field("settings", &self.0.settings).field("known", &*known).finish_non_exhaustive()
    }
}

impl HotWatch {
    /// A watch that trusts nothing until [`HotWatch::ensure_fresh`].
    #[must_use]
    pub fn new(hot: Arc<dyn HotTier>, control_plane: Arc<dyn ControlPlane>, settings: HotWatchSettings) -> Self {
        Self::with_time(hot, control_plane, settings, Arc::new(OsTime))
    }

    fn with_time(
        hot: Arc<dyn HotTier>,
        control_plane: Arc<dyn ControlPlane>,
        settings: HotWatchSettings,
        time: Arc<dyn TimeSource>,
    ) -> Self {
        Self(Arc::new(Watched {
            hot,
            control_plane,
            settings,
            time,
            known: RwLock::default(),
            reading: SingleFlight::new(),
            is_reading_aside: AtomicBool::new(false),
        }))
    }

    /// Reads both if they are unknown or too old. Callers share one read. Where the last one was not answered nobody waits for
    /// the next: it is made in a task of the current Tokio runtime, and until then nothing is trusted.
    pub async fn ensure_fresh(&self) {
        let watched = &self.0;
        match watched.last() {
            Some(last) if watched.is_fresh(last) => {}
            Some(last) if !last.answered => watched.read_aside(),
            Some(_) | None => watched.reading.run(|| watched.read()).await,
        }
    }

    /// Reads both again and again in a task of the current Tokio runtime, until the watch is dropped.
    pub fn refresh_in_background(&self) {
        let watched: Weak<Watched> = Arc::downgrade(&self.0);
        let pause = Duration::from_millis(self.0.settings.refresh_ms.max(1));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(watched) = watched.upgrade() else { return };
                watched.reading.run(|| watched.read()).await;
            }
        });
    }
}

impl Watched {
    fn read_aside(self: &Arc<Self>) {
        if self.is_reading_aside.swap(true, Ordering::SeqCst) {
            return;
        }
        let watched = Arc::clone(self);
        tokio::spawn(async move {
            watched.reading.run(|| watched.read()).await;
            watched.is_reading_aside.store(false, Ordering::SeqCst);
        });
    }

    async fn read(&self) {
        // The time before the read: what happened after it is not in.
        let began = self.time.read();
        let (health, sessions, keeper) = join3(
            self.within(self.hot.health()),
            self.within(self.control_plane.cold_sessions(1)),
            self.within(self.control_plane.keeper_state()),
        )
        .await;
        let keeper = keeper.map(|state| state.and_then(|state| state.pass));
        let was_in_place = self.last().is_none_or(|last| last.is_in_place);
        let (health, keeper) = match are_in_place(&health, &keeper) {
            Some(false) if was_in_place => {
                tokio::time::sleep(Duration::from_millis(COMPARE_AGAIN_MS)).await;
                self.read_in_order().await
            }
            Some(_) | None => (health, keeper),
        };
        let is_in_place = are_in_place(&health, &keeper).unwrap_or(self.last().is_some_and(|last| last.is_in_place));
        let answered = health.is_ok() && sessions.is_ok() && keeper.is_ok();
        let mut problems = Vec::new();
        match health {
            Ok(health) => {
                match health.marker {
                    WarmMarker::Warm(_) | WarmMarker::Filling(_) if keeper.is_ok() && !is_in_place => {
                        problems.push("its marker is of an earlier pass: it may have lost its place".to_owned());
                    }
                    WarmMarker::Warm(_) => {}
                    WarmMarker::Filling(_) => problems.push("it is being filled".to_owned()),
                    WarmMarker::Missing => problems.push("a shard has no warm marker".to_owned()),
                }
                problems.extend(health.problems);
            }
            Err(problem) => problems.push(problem),
        }
        problems.extend(keeper.err());
        match sessions {
            Ok(sessions) if sessions.is_empty() => {}
            Ok(_) => problems.push("a cold session is live or not filled from yet".to_owned()),
            Err(problem) => problems.push(problem),
        }
        // That nothing was heard is as old as the end of the wait for it.
        let as_of = if answered { began } else { self.time.read() };
        let is_complete = answered && is_in_place && problems.is_empty();
        let last = Read { is_complete, is_in_place, answered, as_of };
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
        *known = Known { last: Some(last), reported: Some(problems) };
    }

    /// What the keeper has written last, and then what the tier says: the keeper marks the tier first.
    async fn read_in_order(&self) -> (Result<HotHealth, String>, Result<Option<FillPass>, String>) {
        let keeper = self.within(self.control_plane.keeper_state()).await;
        let health = self.within(self.hot.health()).await;
        (health, keeper.map(|state| state.and_then(|state| state.pass)))
    }

    /// The answer, or in words why there is none.
    async fn within<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
        let timeout_ms = self.settings.timeout_ms;
        match tokio::time::timeout(Duration::from_millis(timeout_ms), answer).await {
            Ok(answer) => answer.map_err(|error| chain(&error)),
            Err(_) => Err(format!("no answer within {timeout_ms} ms")),
        }
    }

    fn last(&self) -> Option<Read> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).last
    }

    fn is_fresh(&self, last: Read) -> bool {
        let age_us = u64::try_from(self.time.read().age_us(last.as_of)).unwrap_or(0);
        age_us <= self.settings.max_age_ms.saturating_mul(1_000)
    }
}

/// Whether the tier's marker is of the keeper's last pass; `None` where one of them did not say.
fn are_in_place(health: &Result<HotHealth, String>, keeper: &Result<Option<FillPass>, String>) -> Option<bool> {
    let (Ok(health), Ok(last_pass)) = (health, keeper) else { return None };
    Some(match health.marker {
        WarmMarker::Warm(pass) | WarmMarker::Filling(pass) => Some(pass) == *last_pass,
        WarmMarker::Missing => false,
    })
}

impl HotTrust for HotWatch {
    fn vouches(&self) -> bool {
        self.0.last().is_some_and(|last| last.is_complete && self.0.is_fresh(last))
    }

    fn is_in_place(&self) -> bool {
        self.0.last().is_some_and(|last| last.is_in_place)
    }
}

#[cfg(all(test, feature = "embedded"))]
#[path = "hot_watch_tests.rs"]
mod tests;
