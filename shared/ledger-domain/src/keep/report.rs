//! How much a keeper's run does, and what it says when it is over.

use crate::ports::{HotHealth, QueueDepth, StoreError};
use crate::time::Timestamp;

/// How much a run does, and how sure it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperSettings {
    /// Rows filled per second at most, so that callers are not slowed down; 0 is no limit.
    pub rows_per_second: u32,
    /// Rows read and filled at once.
    pub chunk_rows: usize,
    /// After so many milliseconds of filling the marker, the sessions and the queue are looked at again.
    pub slice_ms: u64,
    /// Zero counts in a row, each the count's lag after the one before, that prove a queue empty whose count lags.
    pub zero_runs: u32,
    /// How long after the hot tier lost something a fact may still be sent by a check that began before: a PENDING's 10 s, and
    /// the age at which a process still believes what it last heard.
    pub in_flight_ms: u64,
    /// Claims are purged so long after their windows ended: the queue's retention, for until then a fact may come.
    pub purge_after_ms: u64,
    /// Claims purged at once.
    pub purge_rows: usize,
    /// Purges in one run.
    pub purges_max: u32,
}

impl Default for KeeperSettings {
    /// 50,000 rows per second in chunks of 1,000 and slices of 10 s; 3 zero counts, 15 s in flight; 14 days, 50 × 1,000 claims.
    fn default() -> Self {
        Self {
            rows_per_second: 50_000,
            chunk_rows: 1_000,
            slice_ms: 10_000,
            zero_runs: 3,
            in_flight_ms: 15_000,
            purge_after_ms: 14 * 86_400_000,
            purge_rows: 1_000,
            purges_max: 50,
        }
    }
}

/// What an incomplete tier waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitsFor {
    /// Something speaks against the tier that no filling heals.
    #[error("somebody to heal what the hot tier's problems name")]
    Operator,
    /// Some process decides in the cold ledger.
    #[error("the end of cold sessions")]
    Sessions,
    /// Facts wait, or the queue has not counted zero often enough yet.
    #[error("the queue and its dead letters to be drained")]
    Drained,
    /// Rows remain that this run had no time for.
    #[error("more time to fill it")]
    Time,
    /// Another run is at work.
    #[error("another run")]
    AnotherRun,
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct KeptReport {
    /// Whether the hot tier is complete now, as last seen.
    pub is_complete: bool,
    /// Where it is not and no error says why: what it waits for.
    pub waits_for: Option<WaitsFor>,
    /// What the hot tier last said of itself; `None` where it did not answer.
    pub health: Option<HotHealth>,
    /// Cold sessions that are live.
    pub sessions_live: usize,
    /// Cold sessions that have ended, and have not been filled from.
    pub sessions_ended: usize,
    /// Zero counts of the queue so far, since something was lost.
    pub zero_runs: u32,
    /// Rows that this run read.
    pub rows_read: u64,
    /// Rows that this run wrote to the hot tier; it lacked them.
    pub rows_filled: u64,
    /// Claims purged.
    pub purged: u64,
    /// What waits in the queue; `None` where it did not answer.
    pub depth: Option<QueueDepth>,
    /// The time up to which facts are known to be in the cold ledger.
    pub drained_until: Option<Timestamp>,
    /// How old that is, in milliseconds.
    pub drained_age_ms: Option<i64>,
    /// What failed. The rest of the run was done all the same.
    pub errors: Vec<StoreError>,
}
