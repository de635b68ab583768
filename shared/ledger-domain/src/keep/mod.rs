//! What the keeper does each minute: it fills the hot tier from the cold ledger where that lacks something, purges claims that
//! nobody can need any more, and says how things stand.
//!
//! # Why a tier that is called complete is complete
//! What the hot tier may lack is in the cold ledger, or on its way there through the queue. So, in this order:
//! 1. A marker that may be lost with the rest is put on each shard ([`HotTier::begin_fill`]). What a shard loses from here on
//!    takes the marker with it, and [`HotTier::end_fill`] finds that.
//! 2. The pass is written where everybody reads it: a marker of an earlier one counts for nothing from then on, also on a primary
//!    that lost its place and does not know. [`KeeperState::lost_at`] is a time after that, and after each cold session that
//!    stands has ended.
//! 3. Later the queue and the dead-letter queue count zero, so often that the count's own lag is no excuse: whatever was
//!    promised before [`KeeperState::lost_at`] is in the cold ledger.
//! 4. Later a pass begins that reads the cold ledger from the newest row to the oldest, and fills.
//! 5. The marker becomes a warm one, and then the sessions as they were read go. One that was renewed or opened meanwhile
//!    stays, and nobody believes the tier.
//!
//! A row that comes or changes behind the pass's cursor is told by whoever writes it: the cold writer heals after its commit,
//! a decision in the cold ledger is filled or stands under a session.
//!
//! Two runs do not work at once, but where they do (one was frozen) nothing is lost: a marker of another pass makes
//! [`HotTier::end_fill`] fail, a fill never replaces what is newer, and the state is written by its version.

mod report;

use std::sync::Arc;

use futures::future::join;

use crate::EPSILON_MS;
use crate::digest::Slot;
use crate::ids::FillPass;
use crate::ports::{
    ClaimRow, Clock, ColdLedger, ColdSession, ControlPlane, Entropy, EventQueue, Fill, HotHealth, HotTier, KeeperState,
    Position, QueueDepth, StoreError, WarmMarker,
};
use crate::search::note_if_drained;
use crate::time::Timestamp;

pub use report::{KeeperSettings, KeptReport, WaitsFor};

/// Cold sessions looked at in one run. More may stand: they wait for their turn, and nobody believes the tier until then.
const SESSIONS_MAX: usize = 1_000;
/// Bytes of stored responses that are sent to the hot tier at once.
const FILL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a store's clock and this one may differ by, in milliseconds: ε each.
const CLOCKS_DIFFER_MS: i64 = 2 * EPSILON_MS;

/// Keeps the hot tier filled and the cold ledger small.
#[derive(Clone)]
pub struct Keeper {
    /// What is filled.
    pub hot: Arc<dyn HotTier>,
    /// What it is filled from.
    pub cold: Arc<dyn ColdLedger>,
    /// Asked whether anything is on its way.
    pub queue: Arc<dyn EventQueue>,
    /// Cold sessions, and how far earlier runs came.
    pub control_plane: Arc<dyn ControlPlane>,
    /// Ledger time.
    pub clock: Arc<dyn Clock>,
    /// For the ids of passes.
    pub entropy: Arc<dyn Entropy>,
    /// How much a run does.
    pub settings: KeeperSettings,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A state that this run may write, until it is not sure any more what stands.
struct Held {
    state: KeeperState,
    is_ours: bool,
}

/// What speaks for and against the tier.
struct Seen {
    health: HotHealth,
    sessions: Vec<ColdSession>,
    /// The last pass that began, as everybody can read it.
    pass: Option<FillPass>,
}

impl Seen {
    fn is_complete(&self) -> bool {
        self.health.is_complete_since(self.pass) && self.sessions.is_empty()
    }

    fn all_ended_by(&self, at: Timestamp) -> bool {
        self.sessions.iter().all(|session| has_ended(session, at))
    }
}

/// What is known of facts that were sent before something was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    /// Some may be on their way.
    NotDrained,
    /// All are in the cold ledger, as this count shows.
    NowDrained,
    /// All are, as was known before.
    Drained,
}

/// Whether by `at`, on any clock, nobody relies on the session any more.
fn has_ended(session: &ColdSession, at: Timestamp) -> bool {
    session.expires_at.plus_millis(CLOCKS_DIFFER_MS) <= at
}

impl Keeper {
    /// One run: fills for as long as `deadline` allows, purges, and looks how things stand. What fails is in the report.
    ///
    /// # Errors
    /// [`StoreError::DidNotHappen`] where the ledger's time is not known.
    pub async fn run(&self, deadline: Timestamp) -> Result<KeptReport, StoreError> {
        self.now()?;
        let mut kept = KeptReport::default();
        if let Err(error) = self.keep_filled(deadline, &mut kept).await {
            kept.errors.push(error);
        }
        if let Err(error) = self.purge(deadline, &mut kept).await {
            kept.errors.push(error);
        }
        if let Err(error) = self.measure_lag(&mut kept).await {
            kept.errors.push(error);
        }
        Ok(kept)
    }

    fn now(&self) -> Result<Timestamp, StoreError> {
        self.clock.now().map_err(|unknown| StoreError::did_not_happen("read the ledger's time", unknown))
    }

    async fn keep_filled(&self, deadline: Timestamp, kept: &mut KeptReport) -> Result<(), StoreError> {
        // A healthy minute costs two reads and writes nothing.
        let seen = self.look(kept).await?;
        if seen.is_complete() || !seen.health.problems.is_empty() {
            return Ok(());
        }
        let Some(mut held) = self.begin_run(deadline, kept).await? else { return Ok(()) };
        let worked = self.work(&mut held, deadline, kept).await;
        kept.zero_runs = held.state.zero_runs;
        if held.is_ours {
            held.state.busy_until = self.now()?;
            if let Err(error) = self.save(&mut held).await {
                kept.errors.push(error);
            }
        }
        worked
    }

    /// What the tier says of itself and which sessions stand, noted in the report.
    async fn look(&self, kept: &mut KeptReport) -> Result<Seen, StoreError> {
        let health = self.hot.health().await;
        kept.health = health.as_ref().ok().cloned();
        kept.is_complete = false;
        let sessions = self.control_plane.cold_sessions(SESSIONS_MAX).await?;
        let now = self.now()?;
        kept.sessions_ended = sessions.iter().filter(|session| has_ended(session, now)).count();
        kept.sessions_live = sessions.len() - kept.sessions_ended;
        let pass = self.control_plane.keeper_state().await?.and_then(|state| state.pass);
        let seen = Seen { health: health?, sessions, pass };
        kept.is_complete = seen.is_complete();
        kept.waits_for = (!seen.health.problems.is_empty()).then_some(WaitsFor::Operator);
        Ok(seen)
    }

    /// Takes the state for this run; `None` where another run has it, or there is no time left.
    async fn begin_run(&self, deadline: Timestamp, kept: &mut KeptReport) -> Result<Option<Held>, StoreError> {
        let found = self.control_plane.keeper_state().await?;
        let now = self.now()?;
        if now >= deadline {
            kept.waits_for = Some(WaitsFor::Time);
            return Ok(None);
        }
        let state = found.unwrap_or(KeeperState {
            version: 0,
            busy_until: Timestamp::MIN,
            lost_at: now,
            zero_runs: 0,
            zero_at: None,
            pass: None,
            pass_began_at: now,
            cursor: None,
            pass_done: false,
            pass_rows: 0,
        });
        let mut held = Held { state, is_ours: true };
        let is_free = state.busy_until <= now;
        held.state.busy_until = deadline;
        if is_free && self.save(&mut held).await? {
            return Ok(Some(held));
        }
        kept.waits_for = Some(WaitsFor::AnotherRun);
        Ok(None)
    }

    /// Writes the state where the one that was read stands. After an error nobody knows which one does, so this run writes no
    /// more: [`KeeperState::busy_until`] frees it.
    async fn save(&self, held: &mut Held) -> Result<bool, StoreError> {
        held.is_ours = false;
        let next = KeeperState { version: held.state.version.saturating_add(1), ..held.state };
        if self.control_plane.save_keeper_state(&next).await? {
            *held = Held { state: next, is_ours: true };
        }
        Ok(held.is_ours)
    }

    /// Looks, counts and fills by turns, until the tier is complete or something has to be waited for.
    async fn work(&self, held: &mut Held, deadline: Timestamp, kept: &mut KeptReport) -> Result<(), StoreError> {
        loop {
            let seen = self.look(kept).await?;
            if seen.is_complete() || !seen.health.problems.is_empty() {
                return Ok(());
            }
            if self.now()? >= deadline {
                kept.waits_for = Some(WaitsFor::Time);
                return Ok(());
            }
            if !stands_as_left(seen.health.marker, &held.state) {
                self.begin_pass(&mut held.state).await?;
                // Once this stands nobody believes what an earlier pass marked, wherever that still lies.
                if !self.save(held).await? {
                    kept.waits_for = Some(WaitsFor::AnotherRun);
                    return Ok(());
                }
                lost(&mut held.state, self.now()?);
                restart(&mut held.state, self.now()?);
            }
            let queue = self.count(&seen, &mut held.state, kept).await?;
            if queue == Queue::NowDrained {
                // What was filled so far may lack what was drained since. Saved with the count: a state that counts enough
                // zeros has a pass that began after them.
                restart(&mut held.state, self.now()?);
            }
            if !self.save(held).await? {
                kept.waits_for = Some(WaitsFor::AnotherRun);
                return Ok(());
            }
            match (held.state.pass_done, queue) {
                (false, Queue::NotDrained | Queue::NowDrained | Queue::Drained) => {
                    self.fill_slice(&mut held.state, deadline, kept).await?;
                }
                (true, Queue::NowDrained | Queue::Drained) => self.end_pass(&seen, &mut held.state).await?,
                (true, Queue::NotDrained) => {
                    let live = kept.sessions_live > 0;
                    kept.waits_for = Some(if live { WaitsFor::Sessions } else { WaitsFor::Drained });
                    return Ok(());
                }
            }
        }
    }

    /// Begins a pass on a tier that may have lost anything. The time of the loss is read after the marker stands, so that
    /// whatever is lost later is found by it.
    async fn begin_pass(&self, state: &mut KeeperState) -> Result<(), StoreError> {
        let pass = FillPass::from_bytes(self.entropy.eight_bytes());
        self.hot.begin_fill(pass).await?;
        state.pass = Some(pass);
        lost(state, self.now()?);
        restart(state, self.now()?);
        Ok(())
    }

    /// Counts what waits. A queue that does not answer, or whose dead letters nobody can count, is not empty; and while a
    /// session is live there is nothing to count for.
    async fn count(&self, seen: &Seen, state: &mut KeeperState, kept: &mut KeptReport) -> Result<Queue, StoreError> {
        let began_at = self.now()?;
        if !seen.all_ended_by(state.lost_at) {
            lost(state, began_at);
        }
        kept.depth = match self.queue.depth().await {
            Ok(depth) => Some(depth),
            Err(error) => {
                kept.errors.push(error);
                None
            }
        };
        let needed = match kept.depth {
            Some(QueueDepth { lag_ms: 0, .. }) => 1,
            Some(_) | None => self.settings.zero_runs.max(1),
        };
        if state.zero_runs >= needed {
            // Fewer may be needed than when they were counted.
            let is_new = state.zero_at.is_some_and(|zero| state.pass_began_at < zero);
            return Ok(if is_new { Queue::NowDrained } else { Queue::Drained });
        }
        if !kept.depth.is_some_and(|depth| depth.waiting == 0 && depth.dead == Some(0)) {
            state.zero_runs = 0;
            state.zero_at = None;
            return Ok(Queue::NotDrained);
        }
        let earliest = match state.zero_at {
            None => state.lost_at.plus_millis(millis(self.settings.in_flight_ms)),
            Some(zero) => zero.plus_millis(millis(kept.depth.map_or(0, |depth| depth.lag_ms))),
        };
        if began_at < earliest || !seen.all_ended_by(state.lost_at) {
            return Ok(Queue::NotDrained);
        }
        state.zero_runs += 1;
        state.zero_at = Some(self.now()?);
        Ok(if state.zero_runs >= needed { Queue::NowDrained } else { Queue::NotDrained })
    }

    /// Reads on from the cursor and fills, until the slice or the run is over or no row is left. The next rows are read while
    /// these are filled.
    async fn fill_slice(
        &self,
        state: &mut KeeperState,
        deadline: Timestamp,
        kept: &mut KeptReport,
    ) -> Result<(), StoreError> {
        let began_at = self.now()?;
        let until = began_at.plus_millis(millis(self.settings.slice_ms)).min(deadline);
        let mut rows_done = 0;
        let mut rows = self.page(state.cursor).await?;
        loop {
            let Some(last) = rows.last().map(position) else {
                state.pass_done = true;
                return Ok(());
            };
            let count = rows.len() as u64;
            let (filled, next) = join(self.fill(rows), self.page(Some(last))).await;
            kept.rows_filled += filled?;
            kept.rows_read += count;
            state.pass_rows = state.pass_rows.saturating_add(count);
            state.cursor = Some(last);
            rows_done += count;
            self.keep_pace(rows_done, began_at).await?;
            if self.now()? >= until {
                return Ok(());
            }
            rows = next?;
        }
    }

    async fn page(&self, after: Option<Position>) -> Result<Vec<ClaimRow>, StoreError> {
        self.cold.newest_live(self.now()?, after, self.settings.chunk_rows.max(1)).await
    }

    /// Fills rows, as many at once as the bound on bytes allows; how many were written.
    async fn fill(&self, rows: Vec<ClaimRow>) -> Result<u64, StoreError> {
        let mut written = 0;
        let (mut batch, mut bytes) = (Vec::with_capacity(rows.len()), 0);
        for row in rows {
            let size = row.record.response.as_ref().map_or(0, |response| response.body.len());
            if bytes + size > FILL_BYTES_MAX && !batch.is_empty() {
                written += self.fill_batch(&batch).await?;
                batch.clear();
                bytes = 0;
            }
            bytes += size;
            batch.push(Fill { slot: Slot::of(&row.subject.scope, &row.subject.key), row: row.record });
        }
        Ok(written + self.fill_batch(&batch).await?)
    }

    async fn fill_batch(&self, batch: &[Fill]) -> Result<u64, StoreError> {
        let mut written = 0;
        for result in self.hot.fill(batch).await {
            written += u64::from(result?);
        }
        Ok(written)
    }

    /// Waits where more rows were filled since `began_at` than the limit allows.
    async fn keep_pace(&self, rows: u64, began_at: Timestamp) -> Result<(), StoreError> {
        let rate = u64::from(self.settings.rows_per_second);
        let due_ms = rows.saturating_mul(1_000).checked_div(rate).unwrap_or(0);
        let early_ms = millis(due_ms) - self.now()?.millis_since(began_at);
        if let Ok(pause_ms @ 1..) = u64::try_from(early_ms) {
            self.clock.pause(pause_ms).await;
        }
        Ok(())
    }

    /// Marks the tier warm, and then removes the sessions that it was filled since. Where the marker was lost, all begins anew.
    async fn end_pass(&self, seen: &Seen, state: &mut KeeperState) -> Result<(), StoreError> {
        // A warm marker has stood since before the pass.
        if !matches!(seen.health.marker, WarmMarker::Warm(_)) {
            let ended = match state.pass {
                Some(pass) => self.hot.end_fill(pass).await?,
                None => false,
            };
            if !ended {
                state.pass = None;
                return Ok(());
            }
        }
        for session in seen.sessions.iter().filter(|session| has_ended(session, state.lost_at)) {
            self.control_plane.remove_cold_session(session).await?;
        }
        Ok(())
    }

    async fn purge(&self, deadline: Timestamp, kept: &mut KeptReport) -> Result<(), StoreError> {
        for _ in 0..self.settings.purges_max {
            let now = self.now()?;
            if now >= deadline {
                return Ok(());
            }
            let ended_before = now.plus_millis(-millis(self.settings.purge_after_ms));
            let purged = self.cold.purge(ended_before, self.settings.purge_rows).await?;
            kept.purged += purged;
            if purged < self.settings.purge_rows as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn measure_lag(&self, kept: &mut KeptReport) -> Result<(), StoreError> {
        if kept.depth.is_none() {
            kept.depth = Some(self.queue.depth().await?);
        }
        note_if_drained(&*self.queue, &*self.cold, &*self.clock).await?;
        kept.drained_until = self.cold.drained_until().await?;
        let now = self.now()?;
        kept.drained_age_ms = kept.drained_until.map(|until| now.millis_since(until));
        Ok(())
    }
}

/// Whether the tier has lost nothing since the pass of `state` began.
fn stands_as_left(marker: WarmMarker, state: &KeeperState) -> bool {
    match marker {
        WarmMarker::Warm(pass) | WarmMarker::Filling(pass) => state.pass == Some(pass),
        WarmMarker::Missing => false,
    }
}

/// Something may be missing as of `at`: the queue has to be counted empty after it.
fn lost(state: &mut KeeperState, at: Timestamp) {
    state.lost_at = at;
    state.zero_runs = 0;
    state.zero_at = None;
}

/// The rows are to be read from the newest again.
fn restart(state: &mut KeeperState, now: Timestamp) {
    state.pass_began_at = now;
    state.cursor = None;
    state.pass_done = false;
    state.pass_rows = 0;
}

fn position(row: &ClaimRow) -> Position {
    Position { first_seen_at: row.record.first_seen_at, registration_id: row.record.registration_id }
}

fn millis(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}
