//! The cold writer of `local`: drains the queue by the function's own code.

use std::sync::Arc;
use std::time::Duration;

use cold_writer::App;
use ledger_domain::ports::{Delivery, QueueConsumer, StoreError, chain};
use ledger_lambda::sqs::Message;
use tokio::sync::watch;

/// Messages taken at once.
const BATCH_MAX: usize = 1_000;
/// The pause where none waits, in milliseconds.
const IDLE_MS: u64 = 200;
/// The pause after the queue or the ledger failed, in milliseconds.
const BACK_OFF_MS: u64 = 1_000;

/// What came of one look into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Batch {
    /// Nothing waited.
    Empty,
    /// All that was taken is written.
    Written,
    /// Some, or all, failed and comes again.
    Failed,
}

/// Writes one batch and acknowledges what was written.
async fn batch(app: &App, consumer: &dyn QueueConsumer) -> Result<Batch, StoreError> {
    let deliveries = consumer.receive(BATCH_MAX).await?;
    if deliveries.is_empty() {
        return Ok(Batch::Empty);
    }
    // The receipt names the delivery here as the message id does on Lambda.
    let messages: Vec<_> =
        deliveries.into_iter().map(|Delivery { receipt, body }| Message { id: receipt, body }).collect();
    let failed = cold_writer::write(app, &messages).await;
    let written: Vec<_> = messages.into_iter().map(|message| message.id).filter(|id| !failed.contains(id)).collect();
    consumer.ack(&written).await?;
    Ok(if failed.is_empty() { Batch::Written } else { Batch::Failed })
}

/// Drains what waits now: at start, before the first answer, and at the end.
///
/// # Errors
/// Where the queue does not answer. Messages that cannot be written stay in the queue.
pub(crate) async fn drain(app: &App, consumer: &dyn QueueConsumer) -> Result<(), StoreError> {
    while batch(app, consumer).await? != Batch::Empty {}
    Ok(())
}

/// Drains for as long as the process runs.
pub(crate) async fn run(app: Arc<App>, consumer: Arc<dyn QueueConsumer>, mut stop: watch::Receiver<bool>) {
    loop {
        let pause_ms = match batch(&app, &*consumer).await {
            Ok(Batch::Written) => 0,
            Ok(Batch::Empty) => IDLE_MS,
            Ok(Batch::Failed) => BACK_OFF_MS,
            Err(error) => {
                tracing::warn!(error = chain(&error), "the queue could not be drained");
                BACK_OFF_MS
            }
        };
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(Duration::from_millis(pause_ms)) => {}
        }
    }
}
