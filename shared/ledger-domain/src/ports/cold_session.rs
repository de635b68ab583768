//! The cold session of a process: what it must hold while it decides in the cold ledger and the hot tier does not learn of it.

use async_trait::async_trait;

use super::StoreError;
use crate::time::Timestamp;

/// This process's cold session in the control plane.
///
/// While any session is live, or the hot tier is not filled from the cold ledger since one ended, nobody believes the hot tier:
/// it lacks what was decided under the session.
///
/// # Contract
/// - `Ok(until)`: a session of this process stands in the control plane, and will be seen as live until `until` at least, by
///   every process whose clock is within ε. What is decided and answered before then is covered by it.
/// - Nothing remembered is answered where it is too old: after a freeze the session is renewed, or another is opened.
#[async_trait]
pub trait ColdSessions: Send + Sync {
    /// Opens a session, or renews the one there is where little of it is left.
    ///
    /// # Errors
    /// [`StoreError`] where the control plane does not answer: then nothing may be decided that needs the session.
    async fn ensure(&self) -> Result<Timestamp, StoreError>;
}
