//! The control plane: small, consistent, conditional. It holds the scope policies and the hot tier's state: cold sessions, and
//! how far the keeper is.

use async_trait::async_trait;

use super::{Position, StoreError};
use crate::ids::{FillPass, SessionId};
use crate::policy::{Policy, PolicySet};
use crate::scope::Scope;
use crate::time::Timestamp;

/// A cold session: some process decides in the cold ledger, and the hot tier does not learn of it.
///
/// It is live until `expires_at`, and stays there after, until the hot tier was filled from the cold ledger since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdSession {
    /// Which one.
    pub id: SessionId,
    /// Until when it is live.
    pub expires_at: Timestamp,
}

/// How far the keeper is with filling the hot tier, kept between its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperState {
    /// Counts the writes of this state; the first is 1. A run that read an older one than stands must not write.
    pub version: u64,
    /// A run is at work until then at the latest; another leaves it alone.
    pub busy_until: Timestamp,
    /// When the keeper last saw that the hot tier may have lost something, or that a cold session was live.
    pub lost_at: Timestamp,
    /// How often in a row, since `lost_at`, the queue and the dead-letter queue counted zero.
    pub zero_runs: u32,
    /// When they last did.
    pub zero_at: Option<Timestamp>,
    /// The pass that fills the hot tier; `None` before the first.
    pub pass: Option<FillPass>,
    /// When that pass began.
    pub pass_began_at: Timestamp,
    /// The last row it filled, where it is not done; rows come newest first.
    pub cursor: Option<Position>,
    /// Whether it has come to the end of the rows.
    pub pass_done: bool,
    /// Rows it has filled so far.
    pub pass_rows: u64,
}

/// The control plane.
///
/// # Contract
/// - A read sees every write that was acknowledged before it began. A table or file that holds an entry nobody can read is
///   an error for the whole read: half of the policies is no policy, and half of the sessions is none.
/// - A conditional write compares with what stands at write time, in one step; `false` where something else stands there.
///   One whose reply was lost may have happened.
#[async_trait]
pub trait ControlPlane: Send + Sync {
    /// All scope policies.
    ///
    /// # Errors
    /// [`StoreError::Rejected`] naming the entry that is wrong; the other kinds where the store does not answer.
    async fn policies(&self) -> Result<PolicySet, StoreError>;

    /// Cold sessions, live or not filled from yet, at most `limit` of them.
    ///
    /// # Errors
    /// As [`ControlPlane::policies`].
    async fn cold_sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError>;

    /// Writes a session that is not there yet; repeating it is safe. `Ok`: it stands until `expires_at`, at least.
    ///
    /// # Errors
    /// [`StoreError`] where the store does not answer; [`StoreError::Rejected`] where a session of that id ends earlier.
    async fn open_cold_session(&self, session: &ColdSession) -> Result<(), StoreError>;

    /// Moves a session's end, where it stands as `read`.
    ///
    /// # Errors
    /// [`StoreError`] where the store does not answer.
    async fn renew_cold_session(&self, read: &ColdSession, expires_at: Timestamp) -> Result<bool, StoreError>;

    /// Removes a session, where it stands as `read`: the hot tier was filled since it ended.
    ///
    /// # Errors
    /// [`StoreError`] where the store does not answer.
    async fn remove_cold_session(&self, read: &ColdSession) -> Result<bool, StoreError>;

    /// How far the keeper is; `None` before its first run.
    ///
    /// # Errors
    /// As [`ControlPlane::policies`].
    async fn keeper_state(&self) -> Result<Option<KeeperState>, StoreError>;

    /// Writes how far the keeper is, where the version before `state.version` stands (none, for version 1).
    ///
    /// # Errors
    /// [`StoreError`] where the store does not answer; [`StoreError::Rejected`] for version 0.
    async fn save_keeper_state(&self, state: &KeeperState) -> Result<bool, StoreError>;
}

/// The policies as last read, for the hot path: no I/O.
pub trait PolicySource: Send + Sync {
    /// The policy of a scope, or `None` where none was ever read or the last read is older than its stated age.
    fn policy(&self, scope: &Scope) -> Option<Policy>;
}
