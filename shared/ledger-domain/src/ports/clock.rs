//! Time and randomness.

use async_trait::async_trait;

use crate::time::Timestamp;

/// The ledger clock: the process clock corrected by its measured offset to the hot tier's clock (else the cold ledger's).
///
/// Contract: [`Clock::now`] is within ± ε of that clock, or an error; it never answers from an offset older than its stated
/// age, also not after the process was frozen.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Ledger time.
    ///
    /// # Errors
    /// [`ClockUnknown`] where the offset is not known to within ε.
    fn now(&self) -> Result<Timestamp, ClockUnknown>;

    /// Waits `millis` of real time (of manual time, where the clock is manual).
    async fn pause(&self, millis: u64);
}

/// The process does not know the ledger's time, and says so instead of guessing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the offset of this process's clock is not known to within ε")]
pub struct ClockUnknown;

/// Randomness, unguessable in production.
pub trait Entropy: Send + Sync {
    /// Eight random bytes.
    fn eight_bytes(&self) -> [u8; 8];

    /// `count` times eight random bytes. An implementation for which asking is dear asks once.
    fn many_eight_bytes(&self, count: usize) -> Vec<[u8; 8]> {
        (0..count).map(|_| self.eight_bytes()).collect()
    }
}
