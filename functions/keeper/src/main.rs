//! The keeper function on Lambda.
//!
//! Variables: `REDIS_URL`, `DATABASE_URL`, `SQS_QUEUE_URL`, `SQS_DLQ_URL` and `POLICY_TABLE` for scheduled runs, and
//! `MIGRATE_DATABASE_URL`, a direct connection of the tables' owner, for the custom resource. Two functions may be made of it, each
//! with its half. Where one is missing the function starts all the same and what needs it fails with the reason: CloudFormation has
//! to be told.

use std::sync::Arc;

use keeper::{App, Event, Migrate, Responder, ResponderSettings, handle};
use lambda_runtime::{Error, LambdaEvent, run_concurrent, service_fn};
use ledger_domain::keep::{Keeper, KeeperSettings};
use ledger_domain::ports::{Clock as _, ColdLedger, chain};
use ledger_lambda::env::{Env, EnvError};
use ledger_lambda::freshness::Freshness;
use ledger_lambda::{telemetry, tiers};
use ledger_stores::aws;
use ledger_stores::clock::{OsEntropy, SystemClock};
use ledger_stores::dynamodb::DynamoControlPlane;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use serde_json::Value;

/// Connections to PostgreSQL: the next rows are read while nothing else is.
const DATABASE_CONNECTIONS: u32 = 2;
/// How long a migration waits for a connection, in milliseconds: a database may have to wake up first.
const MIGRATE_ACQUIRE_MS: u64 = 60_000;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let env = Env::process();
    telemetry::start(telemetry::Format::Json, env.optional("RUST_LOG"));
    let (keeper, freshness) = match keeper(&env).await {
        Ok((keeper, freshness)) => (Ok(keeper), freshness),
        Err(error) => (Err(error.to_string()), Freshness::default()),
    };
    let migrate = migrate(&env).map_err(|error| error.to_string());
    if let Err(why) = &keeper {
        tracing::warn!(why, "not set up for scheduled runs");
    }
    if let Err(why) = &migrate {
        tracing::info!(why, "not set up for deployments");
    }
    let responder = Responder::new(ResponderSettings::default())?;
    let app = Arc::new(App { keeper, migrate, responder });
    run_concurrent(service_fn(move |event: LambdaEvent<Value>| {
        let (app, freshness) = (Arc::clone(&app), freshness.clone());
        async move {
            // A deployment does not wait for tiers that it may be about to repair.
            match Event::of(&event.payload) {
                Event::Schedule => freshness.ensure().await,
                Event::CustomResource(_) => {}
            }
            handle(&app, &event.payload, remaining_ms(event.context.deadline)).await
        }
    }))
    .await
}

/// What is left until `deadline_ms`, in milliseconds since the epoch by Lambda's clock, which is this machine's.
fn remaining_ms(deadline_ms: u64) -> u64 {
    let now = SystemClock.now().map_or(0, |now| now.as_millis());
    deadline_ms.saturating_sub(u64::try_from(now).unwrap_or(0))
}

async fn keeper(env: &Env) -> Result<(Keeper, Freshness), EnvError> {
    let hot = tiers::redis(env.required("REDIS_URL", "the hot tier")?)?;
    let database_url = env.required("DATABASE_URL", "the cold ledger")?;
    let cold: Arc<dyn ColdLedger> = Arc::new(tiers::postgres(database_url, DATABASE_CONNECTIONS)?);
    let queue_url = env.required("SQS_QUEUE_URL", "the event queue")?;
    env.required("SQS_DLQ_URL", "its dead-letter queue: nobody could say that nothing is missing")?;
    let table = env.required("POLICY_TABLE", "the control plane")?;
    let config = aws::load().await;
    let clock = tiers::clock(Some(&hot), Some(&cold));
    clock.refresh_in_background();
    let freshness = Freshness::of(vec![Arc::clone(&clock) as _]);
    let keeper = Keeper {
        hot,
        cold,
        queue: Arc::new(tiers::sqs(&config, queue_url, env)),
        control_plane: Arc::new(DynamoControlPlane::new(&config, table)),
        clock: tiers::as_clock(&clock),
        entropy: Arc::new(OsEntropy),
        settings: KeeperSettings::default(),
    };
    Ok((keeper, freshness))
}

fn migrate(env: &Env) -> Result<Migrate, EnvError> {
    let url = env.required("MIGRATE_DATABASE_URL", "a direct connection of the tables' owner")?;
    let config =
        PostgresConfig { max_connections: 1, acquire_timeout_ms: MIGRATE_ACQUIRE_MS, ..PostgresConfig::default() };
    let ledger = PostgresLedger::connect_lazy(url, &config)
        .map_err(|error| EnvError::new("MIGRATE_DATABASE_URL", format!("a PostgreSQL URL ({})", chain(&error))))?;
    Ok(Arc::new(move || {
        let ledger = ledger.clone();
        Box::pin(async move { PostgresLedger::migrate(ledger.pool()).await })
    }))
}
