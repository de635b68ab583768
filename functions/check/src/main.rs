//! The check function on Lambda.
//!
//! Variables: `LEDGER_TENANTS`, `REDIS_URL`, `SQS_QUEUE_URL`, `POLICY_TABLE` and `LEDGER_TOKEN_KEYS` must be set.
//! `DATABASE_URL` decides while Redis or the queue is down, and settles what Redis cannot (a policy with `confirmMiss: always`,
//! a Redis that lost something, a value of another release, an act on a claim that Redis no longer holds); without it these are
//! answered 503. `LEDGER_DEFAULT_TENANT` and `SQS_DLQ_URL` are optional. AWS is found as the SDK finds it.

use std::sync::Arc;

use check::{App, Asked, router};
use ledger_domain::check::{Counters, Ledger};
use ledger_domain::ports::{ColdLedger, ControlPlane, EventQueue, HotTier};
use ledger_lambda::env::Env;
use ledger_lambda::freshness::Freshness;
use ledger_lambda::http::lambda;
use ledger_lambda::{shutdown, telemetry, tiers};
use ledger_stores::aws;
use ledger_stores::clock::OsEntropy;
use ledger_stores::cold_session::{ColdSessionSettings, ControlPlaneSessions};
use ledger_stores::dynamodb::DynamoControlPlane;
use ledger_stores::hot_watch::{HotWatch, HotWatchSettings};
use ledger_stores::outbox::{Outbox, OutboxSettings};
use ledger_stores::policy_cache::{PolicyCache, PolicyCacheSettings};
use ledger_stores::repeats::RepeatsQueue;
use mimalloc::MiMalloc;

/// Connections to PostgreSQL: rarely needed, and thousands of processes share one proxy.
const DATABASE_CONNECTIONS: u32 = 2;

/// A check makes many small allocations: with this allocator the router answers a quarter more (`bench`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> Result<(), lambda_http::Error> {
    let env = Env::process();
    telemetry::start(telemetry::Format::Json, env.optional("RUST_LOG"));
    let tenants = env.required_tenants()?;
    let default_tenant = env.default_tenant()?;
    let tokens = env.required_token_keys()?;
    let redis_url = env.required("REDIS_URL", "the hot tier")?;
    let redis = tiers::redis(redis_url)?;
    let guard = tiers::guard(redis_url, Arc::clone(&redis))?;
    let hot: Arc<dyn HotTier> = Arc::clone(&guard) as _;
    let queue_url = env.required("SQS_QUEUE_URL", "the event queue")?;
    let table = env.required("POLICY_TABLE", "the control plane's table")?;
    let cold: Option<Arc<dyn ColdLedger>> = match env.optional("DATABASE_URL") {
        Some(url) => Some(Arc::new(tiers::postgres(url, DATABASE_CONNECTIONS)?)),
        None => None,
    };

    let config = aws::load().await;
    let queue: Arc<dyn EventQueue> = Arc::new(tiers::sqs(&config, queue_url, &env));
    let control_plane: Arc<dyn ControlPlane> = Arc::new(DynamoControlPlane::new(&config, table));
    let policies = Arc::new(PolicyCache::new(Arc::clone(&control_plane), PolicyCacheSettings::default()));
    // The time is asked for past the breakers: the clock has a limit of its own, and another reference.
    let clock = tiers::clock(Some(&redis), cold.as_ref());
    let watch = Arc::new(HotWatch::new(Arc::clone(&hot), Arc::clone(&control_plane), HotWatchSettings::default()));
    let sessions = ControlPlaneSessions::new(
        Arc::clone(&control_plane),
        tiers::as_clock(&clock),
        Arc::new(OsEntropy),
        ColdSessionSettings::default(),
    );
    policies.refresh_in_background();
    let of_repeats: Arc<dyn EventQueue> = match &cold {
        Some(cold) => Arc::new(RepeatsQueue::new(
            Arc::clone(&queue),
            Arc::clone(cold),
            Arc::clone(&watch) as _,
            tiers::as_clock(&clock),
        )),
        None => Arc::clone(&queue),
    };
    let outbox = Arc::new(Outbox::start(of_repeats, OutboxSettings::default()));
    clock.refresh_in_background();
    watch.refresh_in_background();
    let freshness = Freshness::of(vec![Arc::clone(&policies) as _, Arc::clone(&clock) as _, Arc::clone(&watch) as _]);
    // Begun now, so that the first request finds it done or joins it; it is refused where this failed.
    let at_start = freshness.clone();
    tokio::spawn(async move { at_start.ensure().await });

    let ledger = Ledger {
        hot,
        trust: watch,
        queue,
        repeats: Arc::clone(&outbox) as _,
        cold,
        sessions: Arc::new(sessions),
        policies,
        clock: tiers::as_clock(&clock),
        entropy: Arc::new(OsEntropy),
        tokens,
        counters: Counters::default(),
    };
    shutdown::flush_at_end(outbox).await;
    let asked = Asked { guard: Some(guard), control_plane: Some(control_plane) };
    lambda::run(router(Arc::new(App { ledger, tenants, default_tenant, asked })), freshness).await
}
