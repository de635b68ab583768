//! The whole ledger in one process: `cargo run`.
//!
//! The same routers as the functions, on the embedded tiers or, where a variable names one, on real ones. `migrate` as the
//! only argument brings the schema of `DATABASE_URL` up to this release and ends.

mod config;
mod drain;
mod keep;
mod server;
mod token_keys;

use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{Next, from_fn};
use ledger_domain::check::{Counters, Ledger};
use ledger_domain::persist::Writer;
use ledger_domain::ports::ColdSessions;
use ledger_domain::search::Auditor;
use ledger_lambda::env::Env;
use ledger_lambda::freshness::Freshness;
use ledger_lambda::http::Caller;
use ledger_lambda::http::routes::with_problems;
use ledger_lambda::{telemetry, tiers};
use ledger_stores::clock::OsEntropy;
use ledger_stores::cold_session::{ColdSessionSettings, ControlPlaneSessions};
use ledger_stores::hot_watch::{HotWatch, HotWatchSettings};
use ledger_stores::outbox::{Outbox, OutboxSettings};
use ledger_stores::policy_cache::{PolicyCache, PolicyCacheSettings};
use ledger_stores::postgres::PostgresLedger;
use ledger_stores::repeats::RepeatsQueue;
use mimalloc::MiMalloc;
use tokio::net::TcpListener;
use tokio::sync::watch;

use config::{Settings, StartError, Tiers};

/// A check makes many small allocations: with this allocator the router answers a quarter more (`bench`).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let env = Env::process();
    telemetry::start(telemetry::Format::Text, env.optional("RUST_LOG").or(Some("warn")));
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let ended = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(&env).await,
        ["migrate"] => migrate(&env).await,
        _ => Err(StartError::Tier { what: "arguments", why: "expected none, or `migrate`".to_owned() }),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn migrate(env: &Env) -> Result<(), StartError> {
    let ledger = tiers::postgres(env.required("DATABASE_URL", "the database to migrate")?, 1)?;
    PostgresLedger::migrate(ledger.pool()).await.map_err(|error| StartError::tier("DATABASE_URL", &error))
}

async fn run(env: &Env) -> Result<(), StartError> {
    let settings = Settings::of(env)?;
    let tiers = Tiers::open(env, &settings.data).await?;
    let policies = Arc::new(PolicyCache::new(Arc::clone(&tiers.control_plane), PolicyCacheSettings::default()));
    policies.load().await.map_err(|error| StartError::tier(tiers.policies_named_by, &error))?;
    policies.refresh_in_background();
    let sessions: Arc<dyn ColdSessions> = Arc::new(ControlPlaneSessions::new(
        Arc::clone(&tiers.control_plane),
        Arc::clone(&tiers.clock),
        Arc::new(OsEntropy),
        ColdSessionSettings::default(),
    ));
    // Memory always answers.
    let guard = env.optional("REDIS_URL").map(|url| tiers::guard(url, Arc::clone(&tiers.hot))).transpose()?;
    let hot = guard.as_ref().map_or_else(|| Arc::clone(&tiers.hot), |guard| Arc::clone(guard) as _);

    let cold_writer = |hot, trust| cold_writer::App {
        writer: Writer {
            cold: Arc::clone(&tiers.cold),
            hot,
            trust,
            clock: Arc::clone(&tiers.clock),
            sessions: Some(Arc::clone(&sessions)),
            poison: tiers.poison.clone(),
        },
        queue: Some(Arc::clone(&tiers.queue)),
        cold: Arc::clone(&tiers.cold),
        clock: Arc::clone(&tiers.clock),
    };
    // Before the first answer: what was answered NEW before a restart is known again. The hot tier learns of it when all is
    // drained; healed batch by batch it would keep the count of a key's first batch.
    drain::drain(&cold_writer(None, None), &*tiers.consumer)
        .await
        .map_err(|error| StartError::tier("event queue", &error))?;
    let keeper = keep::keeper(&tiers);
    let kept = keep::at_start(&keeper, tiers.queue_is_ours).await;

    // Not before the refill: what was read earlier would count for two seconds more.
    let trust =
        Arc::new(HotWatch::new(Arc::clone(&hot), Arc::clone(&tiers.control_plane), HotWatchSettings::default()));
    trust.ensure_fresh().await;
    trust.refresh_in_background();

    let cold_writer = Arc::new(cold_writer(Some(Arc::clone(&tiers.hot)), Some(Arc::clone(&trust) as _)));

    let of_repeats = RepeatsQueue::new(
        Arc::clone(&tiers.queue),
        Arc::clone(&tiers.cold),
        Arc::clone(&trust) as _,
        Arc::clone(&tiers.clock),
    );
    let outbox = Arc::new(Outbox::start(Arc::new(of_repeats), OutboxSettings::default()));
    let ledger = Ledger {
        hot: Arc::clone(&hot),
        trust: Arc::clone(&trust) as _,
        queue: Arc::clone(&tiers.queue),
        repeats: Arc::clone(&outbox) as _,
        cold: Some(Arc::clone(&tiers.cold)),
        sessions,
        policies: Arc::clone(&policies) as _,
        clock: Arc::clone(&tiers.clock),
        entropy: Arc::new(OsEntropy),
        tokens: token_keys::of(env, &settings.data, &OsEntropy)?,
        counters: Counters::default(),
    };
    let auditor = Auditor { hot, cold: Arc::clone(&tiers.cold), queue: Arc::clone(&tiers.queue), clock: tiers.clock };
    let mut remembered = tiers.remembered;
    remembered.extend([policies as _, trust as _]);
    let check = check::App {
        ledger,
        tenants: settings.tenants.clone(),
        default_tenant: settings.default_tenant.clone(),
        asked: check::Asked { guard, control_plane: Some(tiers.control_plane) },
    };
    let audit = audit::App { auditor, tenants: settings.tenants, default_tenant: settings.default_tenant };
    let router = router(check, audit, Freshness::of(remembered));

    let listener = TcpListener::bind(&settings.addr).await.map_err(|error| StartError::tier("LEDGER_ADDR", &error))?;
    let addr = listener.local_addr().map_err(|error| StartError::tier("LEDGER_ADDR", &error))?;
    let stop_signal = stop_signal();
    greet(&addr.to_string(), &tiers.said, &kept);
    let caller = Caller::named("local").map_err(|error| StartError::tier("caller", &error))?;
    let (stop, stopped) = watch::channel(false);
    let draining = tokio::spawn(drain::run(Arc::clone(&cold_writer), Arc::clone(&tiers.consumer), stopped.clone()));
    let keeping = tokio::spawn(keep::run(keeper, stopped));
    server::serve(listener, router, caller, server::Limits::default(), stop_signal).await;

    // Requests are done; what they left behind goes the rest of its way.
    outbox.flush().await;
    stop.send_replace(true);
    if draining.await.is_err() {
        tracing::warn!("the drain ended badly; what it left is in the queue and is drained at the next start");
    }
    if keeping.await.is_err() {
        tracing::warn!("the keeper ended badly; it goes on at the next start");
    }
    drain::drain(&cold_writer, &*tiers.consumer).await.map_err(|error| StartError::tier("event queue", &error))?;
    drop(tiers.lock);
    Ok(())
}

/// The routes, as problems list them.
const ROUTES: &str = "POST /v1/check, POST /v1/check/batch, POST /v1/claims/resolve, POST /v1/claims/fail, \
                      POST /v1/claims/renew, GET /v1/messages or GET /v1/health";

/// One router over both functions' routes.
fn router(check: check::App, audit: audit::App, freshness: Freshness) -> Router {
    let routes = check::routes(Arc::new(check)).merge(audit::routes(Arc::new(audit)));
    let fresh = from_fn(move |request, next: Next| {
        let freshness = freshness.clone();
        async move {
            freshness.ensure().await;
            next.run(request).await
        }
    });
    with_problems(routes, ROUTES).layer(fresh)
}

#[expect(clippy::print_stdout, reason = "what the program is started for")]
fn greet(addr: &str, said: &[String], kept: &str) {
    println!("message deduplication ledger on http://{addr}");
    for tier in said {
        println!("  {tier}");
    }
    println!("  {kept}");
    println!("try it, twice:");
    println!("  curl -s http://{addr}/v1/check -d '{}'", EXAMPLE);
}

/// A first check to try.
const EXAMPLE: &str = r#"{"scope":"tenant42:as4","key":"a1@partner.example","payloadSha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}"#;

/// Completes at Ctrl-C or SIGTERM. They are listened for from the call on, so that whoever was told the address can end the
/// ledger in good order at once.
fn stop_signal() -> impl Future<Output = ()> {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    let listen = |kind| match signal(kind) {
        Ok(signal) => Some(signal),
        Err(error) => {
            tracing::warn!(%error, "a signal cannot be listened for; it ends the ledger without a drain");
            None
        }
    };
    async fn received(signal: Option<Signal>) {
        match signal {
            Some(mut signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
    let (interrupt, terminate) = (listen(SignalKind::interrupt()), listen(SignalKind::terminate()));
    async move {
        tokio::select! {
            () = received(interrupt) => {}
            () = received(terminate) => {}
        }
    }
}
