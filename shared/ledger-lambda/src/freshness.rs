//! What a process remembers must be fresh when a request arrives, before it is used.
//!
//! Lambda freezes processes and nothing runs in between, so a background refresh alone is not enough: the age of each
//! remembered fact is judged per request, and what is too old is asked for again.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use ledger_domain::ports::chain;
use ledger_stores::clock::LedgerClock;
use ledger_stores::hot_watch::HotWatch;
use ledger_stores::policy_cache::PolicyCache;

/// Something remembered that has an age.
#[async_trait]
pub trait Remembered: Send + Sync {
    /// Asks again where it is too old. Where that fails it stays too old, and whoever needs it refuses.
    async fn ensure(&self);
}

#[async_trait]
impl Remembered for LedgerClock {
    async fn ensure(&self) {
        // The clock logs its own changes for the worse and the better.
        let _ = self.ensure_known().await;
    }
}

#[async_trait]
impl Remembered for PolicyCache {
    async fn ensure(&self) {
        if let Err(error) = self.ensure_fresh().await {
            tracing::warn!(error = chain(&error), "no policy is known: checks are refused");
        }
    }
}

#[async_trait]
impl Remembered for HotWatch {
    async fn ensure(&self) {
        self.ensure_fresh().await;
    }
}

/// All that one function remembers.
#[derive(Clone, Default)]
pub struct Freshness(Arc<[Arc<dyn Remembered>]>);

impl std::fmt::Debug for Freshness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Freshness").field(&self.0.len()).finish()
    }
}

impl Freshness {
    /// Of these.
    #[must_use]
    pub fn of(remembered: Vec<Arc<dyn Remembered>>) -> Self {
        Self(remembered.into())
    }

    /// Asks again for whatever is too old: at once, and no I/O where nothing is.
    pub async fn ensure(&self) {
        join_all(self.0.iter().map(|remembered| remembered.ensure())).await;
    }
}
