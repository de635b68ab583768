//! The cold-writer function on Lambda.
//!
//! Variables: `DATABASE_URL` must be set. With `REDIS_URL` hot records are healed after each commit, and with `POLICY_TABLE`
//! everybody is told where that failed, or where that Redis is not the one that the others ask; with `SQS_QUEUE_URL` and
//! `SQS_DLQ_URL` it is noted when all facts are drained, and with `SQS_PARKED_URL` besides, messages that are no facts are parked
//! there.

use std::sync::Arc;

use aws_lambda_events::event::sqs::SqsEvent;
use cold_writer::{App, handle};
use lambda_runtime::{Error, LambdaEvent, run_concurrent, service_fn};
use ledger_domain::persist::Writer;
use ledger_domain::ports::{ColdLedger, ColdSessions, ControlPlane, EventQueue, HotTier, HotTrust, PoisonSink};
use ledger_lambda::env::Env;
use ledger_lambda::freshness::{Freshness, Remembered};
use ledger_lambda::{telemetry, tiers};
use ledger_stores::aws;
use ledger_stores::clock::OsEntropy;
use ledger_stores::cold_session::{ColdSessionSettings, ControlPlaneSessions};
use ledger_stores::dynamodb::DynamoControlPlane;
use ledger_stores::hot_watch::{HotWatch, HotWatchSettings};

/// Connections to PostgreSQL: as many batches as one process writes at once.
const DATABASE_CONNECTIONS: u32 = 4;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let env = Env::process();
    telemetry::start(telemetry::Format::Json, env.optional("RUST_LOG"));
    let database_url = env.required("DATABASE_URL", "the cold ledger")?;
    let cold: Arc<dyn ColdLedger> = Arc::new(tiers::postgres(database_url, DATABASE_CONNECTIONS)?);
    let hot: Option<Arc<dyn HotTier>> = env.optional("REDIS_URL").map(tiers::redis).transpose()?;
    let (queue_url, table) = (env.optional("SQS_QUEUE_URL"), env.optional("POLICY_TABLE"));
    let config = if queue_url.or(table).is_some() { Some(aws::load().await) } else { None };
    let config = config.as_ref();
    let sqs = config.zip(queue_url).map(|(config, url)| Arc::new(tiers::sqs(config, url, &env)));
    let queue = sqs.clone().map(|queue| queue as Arc<dyn EventQueue>);
    let poison = sqs.filter(|_| env.optional("SQS_PARKED_URL").is_some()).map(|queue| queue as Arc<dyn PoisonSink>);
    let clock = tiers::clock(hot.as_ref(), Some(&cold));
    clock.refresh_in_background();
    let mut remembered: Vec<Arc<dyn Remembered>> = vec![Arc::clone(&clock) as _];
    let clock = tiers::as_clock(&clock);
    let control_plane: Option<Arc<dyn ControlPlane>> =
        config.zip(table).map(|(config, table)| Arc::new(DynamoControlPlane::new(config, table)) as _);
    let sessions = control_plane.clone().map(|control_plane| {
        let (entropy, settings) = (Arc::new(OsEntropy), ColdSessionSettings::default());
        Arc::new(ControlPlaneSessions::new(control_plane, Arc::clone(&clock), entropy, settings))
            as Arc<dyn ColdSessions>
    });
    let trust = hot.clone().zip(control_plane).map(|(hot, control_plane)| {
        let watch = Arc::new(HotWatch::new(hot, control_plane, HotWatchSettings::default()));
        remembered.push(Arc::clone(&watch) as _);
        watch as Arc<dyn HotTrust>
    });
    let freshness = Freshness::of(remembered);
    let writer = Writer { cold: Arc::clone(&cold), hot, trust, clock: Arc::clone(&clock), sessions, poison };
    let app = Arc::new(App { writer, queue, cold, clock });
    run_concurrent(service_fn(move |event: LambdaEvent<SqsEvent>| {
        let (app, freshness) = (Arc::clone(&app), freshness.clone());
        async move {
            freshness.ensure().await;
            handle(&app, event.payload).await
        }
    }))
    .await
}
