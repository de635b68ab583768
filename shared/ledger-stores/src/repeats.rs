//! Where facts about repeats go, which nobody waits for.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use ledger_domain::Fact;
use ledger_domain::persist::alarm_of_false_new;
use ledger_domain::ports::{Clock, ColdLedger, EventQueue, HotTrust, QueueDepth, StoreError, chain};

/// To the event queue; but straight into the cold ledger while the hot tier is not complete.
///
/// The keeper may call the tier complete again only once the queue counts zero, and under load a queue that takes each repeat never
/// does. Registrations and claims are settled in the cold ledger at such a time in any case, so with the repeats the queue comes
/// to rest.
pub struct RepeatsQueue {
    queue: Arc<dyn EventQueue>,
    cold: Arc<dyn ColdLedger>,
    trust: Arc<dyn HotTrust>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for RepeatsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatsQueue").finish_non_exhaustive()
    }
}

impl RepeatsQueue {
    /// Before `queue`.
    #[must_use]
    pub fn new(
        queue: Arc<dyn EventQueue>,
        cold: Arc<dyn ColdLedger>,
        trust: Arc<dyn HotTrust>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { queue, cold, trust, clock }
    }
}

#[async_trait]
impl EventQueue for RepeatsQueue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        if !self.trust.vouches()
            && let Ok(now) = self.clock.now()
        {
            match self.cold.persist(facts, now).await {
                Ok(persisted) => {
                    alarm_of_false_new(persisted.false_new);
                    return facts.iter().map(|_| Ok(())).collect();
                }
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "facts of repeats go to the queue, for the cold ledger did not take them"
                    );
                }
            }
        }
        self.queue.send(facts).await
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        self.queue.send_together(facts).await
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        self.queue.depth().await
    }
}
