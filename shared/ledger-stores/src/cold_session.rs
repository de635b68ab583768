//! This process's cold session.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ledger_domain::ports::{Clock, ColdSession, ColdSessions, ControlPlane, Entropy, StoreError};
use ledger_domain::{SessionId, Timestamp};

use crate::os_time::{OsTime, TimeSource};
use crate::recent_failure::RecentFailure;
use crate::single_flight::SingleFlight;

const OPERATION: &str = "hold a cold session";
/// How often one call tries: the second try is for a process that was frozen during the first.
const ATTEMPTS: usize = 2;

/// How long a cold session lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdSessionSettings {
    /// How long a session is live from when it was opened or last renewed. Nobody believes the hot tier for so long after the
    /// last decision in the cold ledger, so it is short; it is renewed at half of it, so a control plane may be away for ten
    /// seconds, and a process writes to it six times a minute.
    pub lifetime_ms: u64,
    /// How long before its end a session is no longer relied on. Two clocks may be 2 ε apart; the rest is for a process that is
    /// held up between its last look at the clock and its answer.
    pub margin_ms: u64,
    /// What a decision in the cold ledger may take. A session with less left than this is renewed before it is relied on.
    pub decision_ms: u64,
    /// How long the control plane has for an attempt. A check that cannot have a session is refused, and soon.
    pub timeout_ms: u64,
    /// How long after an attempt that failed none is made: callers then get its failure.
    pub retry_ms: u64,
}

impl Default for ColdSessionSettings {
    fn default() -> Self {
        Self { lifetime_ms: 20_000, margin_ms: 2_000, decision_ms: 2_000, timeout_ms: 1_000, retry_ms: 250 }
    }
}

/// This process's session in a [`ControlPlane`].
///
/// All is judged by the ledger clock when it is asked for: where that is unknown nothing can be relied on. A session that has
/// ended is never revived, for the hot tier may have been filled since.
pub struct ControlPlaneSessions(Arc<Shared>);

struct Shared {
    control_plane: Arc<dyn ControlPlane>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    settings: ColdSessionSettings,
    time: Arc<dyn TimeSource>,
    sessions: Mutex<Sessions>,
    attempting: SingleFlight<Result<(), StoreError>>,
    failure: RecentFailure<StoreError>,
    is_renewing: AtomicBool,
}

/// What this process knows of its sessions.
#[derive(Debug, Default)]
struct Sessions {
    /// As the control plane acknowledged it last. Where a renewal's reply was lost it may stand with a later end, which covers
    /// no less.
    held: Option<ColdSession>,
    /// Sent, but not acknowledged: sent again as it is, so that lost replies leave one item and not many.
    unacknowledged: Option<ColdSession>,
}

/// What is left of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It may be relied on until then, and that is far.
    Much(Timestamp),
    /// It may be relied on until then, and is to be renewed.
    Little(Timestamp),
    /// Too little for a decision, or there is none.
    Nothing,
}

impl fmt::Debug for ControlPlaneSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlaneSessions")
            .field("settings", &self.0.settings)
            .field("sessions", &*self.0.sessions())
            .finish_non_exhaustive()
    }
}

impl ControlPlaneSessions {
    /// No session yet.
    #[must_use]
    pub fn new(
        control_plane: Arc<dyn ControlPlane>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        settings: ColdSessionSettings,
    ) -> Self {
        Self::with_time(control_plane, clock, entropy, settings, Arc::new(OsTime))
    }

    fn with_time(
        control_plane: Arc<dyn ControlPlane>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        settings: ColdSessionSettings,
        time: Arc<dyn TimeSource>,
    ) -> Self {
        Self(Arc::new(Shared {
            control_plane,
            clock,
            entropy,
            settings,
            time,
            sessions: Mutex::default(),
            attempting: SingleFlight::new(),
            failure: RecentFailure::new(settings.retry_ms),
            is_renewing: AtomicBool::new(false),
        }))
    }
}

#[async_trait]
impl ColdSessions for ControlPlaneSessions {
    async fn ensure(&self) -> Result<Timestamp, StoreError> {
        let shared = &self.0;
        for attempt in 0..=ATTEMPTS {
            match shared.left(shared.now()?) {
                Left::Much(until) => return Ok(until),
                Left::Little(until) => {
                    shared.renew_in_background();
                    return Ok(until);
                }
                Left::Nothing if attempt == ATTEMPTS => break,
                Left::Nothing => {}
            }
            if let Some(error) = shared.failure.at(shared.time.read()) {
                return Err(error);
            }
            shared.attempting.run(|| shared.attempt()).await?;
        }
        Err(StoreError::did_not_happen(OPERATION, "each was over when it was acknowledged"))
    }
}

impl Shared {
    fn now(&self) -> Result<Timestamp, StoreError> {
        self.clock.now().map_err(|unknown| StoreError::did_not_happen(OPERATION, unknown))
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self, now: Timestamp) -> Left {
        let Some(held) = self.sessions().held else { return Left::Nothing };
        let until = held.expires_at.plus_millis(-signed(self.settings.margin_ms));
        if held.expires_at.millis_since(now) >= signed(self.settings.lifetime_ms / 2) {
            Left::Much(until)
        } else if until.millis_since(now) >= signed(self.settings.decision_ms) {
            Left::Little(until)
        } else {
            Left::Nothing
        }
    }

    /// Renews off the caller's way, one at a time.
    fn renew_in_background(self: &Arc<Self>) {
        if self.failure.at(self.time.read()).is_some() || self.is_renewing.swap(true, Ordering::SeqCst) {
            return;
        }
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            // A failure is logged where it was seen; the session is relied on for what is left of it.
            let _ = shared.attempting.run(|| shared.attempt()).await;
            shared.is_renewing.store(false, Ordering::SeqCst);
        });
    }

    /// One attempt, within its limit.
    async fn attempt(&self) -> Result<(), StoreError> {
        let timeout_ms = self.settings.timeout_ms;
        let outcome = tokio::time::timeout(Duration::from_millis(timeout_ms), self.renew_or_open()).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(StoreError::may_have_happened(OPERATION, format!("no answer within {timeout_ms} ms")))
        });
        if let Err(error) = &outcome {
            let error = ledger_domain::ports::chain(error);
            tracing::error!(error, "ALARM: no cold session can be held; what needs one is refused");
        }
        self.failure.note(&outcome, self.time.read());
        outcome
    }

    async fn renew_or_open(&self) -> Result<(), StoreError> {
        // The time before the write: a session never lasts longer than it is said to.
        let now = self.now()?;
        if matches!(self.left(now), Left::Much(_)) {
            return Ok(());
        }
        let expires_at = now.plus_millis(signed(self.settings.lifetime_ms));
        let held = self.sessions().held;
        if let Some(held) = held.filter(|held| held.expires_at > now) {
            if self.control_plane.renew_cold_session(&held, expires_at).await? {
                self.sessions().held = Some(ColdSession { expires_at, ..held });
                return Ok(());
            }
            // The keeper took it for ended, or it was renewed by a write whose reply was lost.
            self.sessions().held = None;
        }
        let is_worth_it =
            |sent: &ColdSession| sent.expires_at.millis_since(now) >= signed(self.settings.lifetime_ms / 2);
        let unacknowledged = self.sessions().unacknowledged.filter(is_worth_it);
        let session = unacknowledged
            .unwrap_or_else(|| ColdSession { id: SessionId::from_bytes(self.entropy.eight_bytes()), expires_at });
        self.sessions().unacknowledged = Some(session);
        self.control_plane.open_cold_session(&session).await?;
        *self.sessions() = Sessions { held: Some(session), unacknowledged: None };
        tracing::warn!(session = %session.id, "a cold session is open: the hot tier is believed by nobody");
        Ok(())
    }
}

fn signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "cold_session_tests.rs"]
mod tests;
