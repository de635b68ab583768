//! The audit function on Lambda.
//!
//! Variables: `LEDGER_TENANTS`, `REDIS_URL`, `DATABASE_URL` and `SQS_QUEUE_URL` must be set; so should `SQS_DLQ_URL`, without
//! which nobody knows up to when facts are drained (`asOf`). `LEDGER_DEFAULT_TENANT` is optional.

use std::sync::Arc;

use audit::{App, router};
use ledger_domain::ports::{ColdLedger, EventQueue};
use ledger_domain::search::Auditor;
use ledger_lambda::env::Env;
use ledger_lambda::freshness::Freshness;
use ledger_lambda::http::lambda;
use ledger_lambda::{telemetry, tiers};
use ledger_stores::aws;

/// Connections to PostgreSQL: as many searches as one process runs at once.
const DATABASE_CONNECTIONS: u32 = 4;

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    let env = Env::process();
    telemetry::start(telemetry::Format::Json, env.optional("RUST_LOG"));
    let tenants = env.required_tenants()?;
    let default_tenant = env.default_tenant()?;
    let hot = tiers::redis(env.required("REDIS_URL", "the hot tier")?)?;
    let database_url = env.required("DATABASE_URL", "the cold ledger")?;
    let cold: Arc<dyn ColdLedger> = Arc::new(tiers::postgres(database_url, DATABASE_CONNECTIONS)?);
    let queue_url = env.required("SQS_QUEUE_URL", "the event queue")?;
    let queue: Arc<dyn EventQueue> = Arc::new(tiers::sqs(&aws::load().await, queue_url, &env));
    let clock = tiers::clock(Some(&hot), Some(&cold));
    clock.refresh_in_background();
    let freshness = Freshness::of(vec![Arc::clone(&clock) as _]);
    let auditor = Auditor { hot, cold, queue, clock: tiers::as_clock(&clock) };
    lambda::run(router(Arc::new(App { auditor, tenants, default_tenant })), freshness).await
}
