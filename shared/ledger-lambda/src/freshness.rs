//! What a process remembers must be fresh when a request arrives, before it is used.
//!
//! Lambda freezes processes and nothing runs in between, so a background refresh alone is not enough: the age of each
//! remembered fact is judged per request, and what is too old is asked for again.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;

/// Something remembered that has an age.
#[async_trait]
pub trait Remembered: Send + Sync {
    /// Whether it may be used as it is: no I/O.
    fn is_fresh(&self) -> bool;

    /// Asks again. What fails stays stale, and whoever needs it refuses.
    async fn refresh(&self);
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

    /// Asks again for whatever is too old; costs a few loads where nothing is.
    pub async fn ensure(&self) {
        if self.0.iter().all(|remembered| remembered.is_fresh()) {
            return;
        }
        join_all(self.0.iter().filter(|remembered| !remembered.is_fresh()).map(|remembered| remembered.refresh()))
            .await;
    }
}
