//! The cold-writer function: a batch of facts from SQS into the cold ledger.
//!
//! Peeled like an onion: event → messages → [`Writer::write`] → what failed. `local` drains its queue by the same
//! [`write()`].

use std::sync::Arc;

use aws_lambda_events::event::sqs::SqsEvent;
use ledger_domain::persist::{Failure, Writer, Written, alarm_of_false_new};
use ledger_domain::ports::{Clock, ColdLedger, EventQueue, StoreError, chain};
use ledger_domain::search::note_if_drained;
use ledger_lambda::sqs::{BatchResponse, Message, MissingId, messages};

/// What the function needs.
pub struct App {
    /// Persists and heals.
    pub writer: Writer,
    /// Asked after each batch whether all is drained; without it the audit view's `asOf` is not moved on from here.
    pub queue: Option<Arc<dyn EventQueue>>,
    /// Where that is noted.
    pub cold: Arc<dyn ColdLedger>,
    /// Ledger time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").finish_non_exhaustive()
    }
}

/// Works off one SQS event.
///
/// # Errors
/// [`MissingId`]: the whole batch must come again, since no failure could be named.
pub async fn handle(app: &App, event: SqsEvent) -> Result<BatchResponse, MissingId> {
    let messages = messages(event)?;
    let failed = write(app, &messages).await;
    Ok(BatchResponse::of(failed))
}

/// Writes messages; answers the ids of those that failed, to be delivered again.
pub async fn write(app: &App, messages: &[Message]) -> Vec<String> {
    let bodies: Vec<&str> = messages.iter().map(|message| message.body.as_str()).collect();
    let written = app.writer.write(&bodies).await;
    report(&written, messages);
    if let Some(queue) = &app.queue
        && let Err(error) = note_if_drained(&**queue, &*app.cold, &*app.clock).await
    {
        tracing::warn!(error = chain(&error), "could not note that the queue is drained");
    }
    written.failures.into_iter().map(|(at, _)| messages[at].id.clone()).collect()
}

fn report(written: &Written, messages: &[Message]) {
    for (at, reason) in &written.parked {
        let message_id = messages[*at].id.as_str();
        tracing::error!(message_id, reason = chain(reason), "poison: no fact; it is parked");
    }
    for (at, failure) in &written.failures {
        let message_id = messages[*at].id.as_str();
        let error = chain(failure);
        match failure {
            Failure::NotAFact(_) => {
                tracing::error!(
                    message_id,
                    error,
                    "a message this release cannot read; it ends in the dead-letter queue"
                );
            }
            Failure::Store(StoreError::Rejected { .. }) => {
                tracing::error!(message_id, error, "a fact the ledger refuses; it ends in the dead-letter queue");
            }
            Failure::NotParked { .. }
            | Failure::Untold(_)
            | Failure::Clock
            | Failure::Store(StoreError::DidNotHappen { .. } | StoreError::MayHaveHappened { .. }) => {
                tracing::warn!(message_id, error, "a message is not done and comes again");
            }
        }
    }
    for month in &written.months_created {
        tracing::error!(
            month = month.as_str(),
            "ALARM: a month's partition was missing and had to be created by the writer"
        );
    }
    alarm_of_false_new(written.false_new);
    if let Some(error) = &written.heal_error {
        tracing::warn!(error = chain(error), "the hot tier was not healed; a cold session has to say so");
    }
    let (persisted, failed, healed) = (written.persisted, written.failures.len(), written.healed);
    let parked = written.parked.len();
    tracing::info!(messages = messages.len(), persisted, failed, parked, healed, "batch written");
}
