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

/// Drains for as long as the process runs. After a failure nothing is taken before the ledger answers again: each delivery
/// counts, and a message delivered too often is given up.
pub(crate) async fn run(app: Arc<App>, consumer: Arc<dyn QueueConsumer>, mut stop: watch::Receiver<bool>) {
    let mut has_failed = false;
    loop {
        let taken = if has_failed && app.cold.time().await.is_err() {
            Ok(Batch::Failed)
        } else {
            batch(&app, &*consumer).await
        };
        has_failed = !matches!(taken, Ok(Batch::Empty | Batch::Written));
        let pause_ms = match taken {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use ledger_domain::persist::Writer;
    use ledger_domain::ports::Clock;
    use ledger_stores::clock::SystemClock;
    use ledger_stores::sqlite::SqliteLedger;
    use ledger_testkit::cold_ledger::{fact, registration, subject};
    use ledger_testkit::faulty::{FaultRates, Faulty};

    use super::*;

    /// Always delivers a message, and counts how often.
    #[derive(Default)]
    struct Endless(AtomicU32);

    #[async_trait]
    impl QueueConsumer for Endless {
        async fn receive(&self, _max: usize) -> Result<Vec<Delivery>, StoreError> {
            let n = self.0.fetch_add(1, Ordering::SeqCst);
            let now = SystemClock.now().map_err(|unknown| StoreError::did_not_happen("receive", unknown))?;
            let fact = fact(&subject("t1:as4", &n.to_string()), &registration(u64::from(n), now, 60));
            Ok(vec![Delivery { receipt: n.to_string(), body: fact.to_json() }])
        }

        async fn ack(&self, _receipts: &[String]) -> Result<(), StoreError> {
            Ok(())
        }
    }

    async fn pass_seconds(seconds: u64) {
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test]
    async fn while_the_ledger_is_down_messages_are_not_delivered_to_death() {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = Arc::new(SqliteLedger::open(&folder.path().join("ledger.sqlite")).await.expect("opens"));
        let cold = Arc::new(Faulty::new(ledger, 1, FaultRates::DOWN));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let writer = Writer::of(Arc::clone(&cold) as _, Arc::clone(&clock));
        let app = Arc::new(App { writer, queue: None, cold: Arc::clone(&cold) as _, clock });
        let consumer = Arc::new(Endless::default());
        let (stop, stopped) = watch::channel(false);
        // From here on time passes as fast as nothing else is to be done.
        tokio::time::pause();
        let running = tokio::spawn(run(app, Arc::clone(&consumer) as _, stopped));
        pass_seconds(600).await;
        assert_eq!(consumer.0.load(Ordering::SeqCst), 1, "delivered once, and then the ledger is waited for");
        cold.set_rates(FaultRates::NONE);
        tokio::time::resume();
        while consumer.0.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
        stop.send_replace(true);
        running.await.expect("no panic");
    }
}
