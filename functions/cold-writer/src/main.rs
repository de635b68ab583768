//! The cold-writer function on Lambda.
//!
//! Variables: `DATABASE_URL` must be set. With `REDIS_URL` hot records are healed after each commit; with `SQS_QUEUE_URL` and
//! `SQS_DLQ_URL` it is noted when all facts are drained.

use std::sync::Arc;

use aws_lambda_events::event::sqs::SqsEvent;
use cold_writer::{App, handle};
use lambda_runtime::{Error, LambdaEvent, run_concurrent, service_fn};
use ledger_domain::persist::Writer;
use ledger_domain::ports::{ColdLedger, EventQueue, HotTier};
use ledger_lambda::env::Env;
use ledger_lambda::freshness::Freshness;
use ledger_lambda::{telemetry, tiers};
use ledger_stores::aws;

/// Connections to PostgreSQL: as many batches as one process writes at once.
const DATABASE_CONNECTIONS: u32 = 4;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let env = Env::process();
    telemetry::start(telemetry::Format::Json, env.optional("RUST_LOG"));
    let database_url = env.required("DATABASE_URL", "the cold ledger")?;
    let cold: Arc<dyn ColdLedger> = Arc::new(tiers::postgres(database_url, DATABASE_CONNECTIONS)?);
    let hot: Option<Arc<dyn HotTier>> = env.optional("REDIS_URL").map(tiers::redis).transpose()?;
    let queue: Option<Arc<dyn EventQueue>> = match env.optional("SQS_QUEUE_URL") {
        Some(url) => Some(Arc::new(tiers::sqs(&aws::load().await, url, &env))),
        None => None,
    };
    let clock = tiers::clock(hot.as_ref(), Some(&cold));
    clock.refresh_in_background();
    let freshness = Freshness::of(vec![Arc::clone(&clock) as _]);
    let writer = Writer { cold: Arc::clone(&cold), hot, clock: tiers::as_clock(&clock) };
    let app = Arc::new(App { writer, queue, cold, clock: tiers::as_clock(&clock) });
    run_concurrent(service_fn(move |event: LambdaEvent<SqsEvent>| {
        let (app, freshness) = (Arc::clone(&app), freshness.clone());
        async move {
            freshness.ensure().await;
            handle(&app, event.payload).await
        }
    }))
    .await
}
