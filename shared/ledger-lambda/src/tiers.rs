//! The real tiers, each from its variable. A wrong one is an error that names it; nothing falls back to a fake.

use std::sync::Arc;

#[cfg(feature = "redis")]
use ledger_domain::breaker::BreakerSettings;
use ledger_domain::ports::{Clock, ColdLedger, HotTier};
use ledger_stores::clock::{ColdTime, HotTime, LedgerClock, LedgerClockSettings, TimeReference};
#[cfg(feature = "redis")]
use ledger_stores::guarded::{GuardedHotTier, Lanes};
#[cfg(feature = "redis")]
use ledger_stores::redis::{RedisUrl, Topology};

#[cfg(feature = "sqs")]
use crate::env::Env;
#[cfg(any(feature = "postgres", feature = "redis"))]
use crate::env::EnvError;

/// What `REDIS_URL` names.
///
/// # Errors
/// [`EnvError`] where it cannot be read. Nothing is connected yet.
#[cfg(feature = "redis")]
pub fn redis(url: &str) -> Result<Arc<dyn HotTier>, EnvError> {
    let tier = ledger_stores::redis::RedisHotTier::open(url).map_err(|error| {
        EnvError::new("REDIS_URL", format!("a Redis URL ({})", ledger_domain::ports::chain(&error)))
    })?;
    Ok(Arc::new(tier))
}

/// The hot tier that `REDIS_URL` names behind circuit breakers: what the check asks. A call that took as long as the URL lets
/// a connection or a reply take was not answered.
///
/// # Errors
/// [`EnvError`] where the URL cannot be read.
#[cfg(feature = "redis")]
pub fn guard(url: &str, hot: Arc<dyn HotTier>) -> Result<Arc<GuardedHotTier>, EnvError> {
    let url = RedisUrl::parse(url).map_err(|error| {
        EnvError::new("REDIS_URL", format!("a Redis URL ({})", ledger_domain::ports::chain(&error)))
    })?;
    let (lanes, settings) = breakers(&url);
    Ok(Arc::new(GuardedHotTier::new(hot, lanes, settings)))
}

#[cfg(feature = "redis")]
fn breakers(url: &RedisUrl) -> (Lanes, BreakerSettings) {
    let lanes = match url.topology {
        Topology::Single | Topology::Sentinel(_) => Lanes::One,
        Topology::Cluster => Lanes::Cluster,
    };
    let slow = url.connect_timeout.min(url.response_timeout).as_micros();
    (lanes, BreakerSettings { slow_us: i64::try_from(slow).unwrap_or(i64::MAX), ..BreakerSettings::default() })
}

/// What `DATABASE_URL` names, with at most `max_connections` connections.
///
/// # Errors
/// [`EnvError`] where it cannot be read. Nothing is connected yet.
#[cfg(feature = "postgres")]
pub fn postgres(url: &str, max_connections: u32) -> Result<ledger_stores::postgres::PostgresLedger, EnvError> {
    use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
    let config = PostgresConfig { max_connections, ..PostgresConfig::default() };
    PostgresLedger::connect_lazy(url, &config).map_err(|_| {
        EnvError::new("DATABASE_URL", "a URL like postgres://user:password@host/database?sslmode=verify-full")
    })
}

/// What `SQS_QUEUE_URL` names, and `SQS_DLQ_URL` and `SQS_PARKED_URL` where they are set.
#[cfg(feature = "sqs")]
#[must_use]
pub fn sqs(config: &ledger_stores::aws::SdkConfig, queue_url: &str, env: &Env) -> ledger_stores::sqs::SqsQueue {
    ledger_stores::sqs::SqsQueue::new(config, sqs_settings(queue_url, env))
}

/// Which queues, from the environment. `SQS_DEPTH_LAG_MS` is for emulators, whose counts do not lag; where it is no number the
/// counts are taken to lag as those of AWS do.
#[cfg(feature = "sqs")]
#[must_use]
pub fn sqs_settings(queue_url: &str, env: &Env) -> ledger_stores::sqs::SqsSettings {
    let lag_ms = env.optional("SQS_DEPTH_LAG_MS").and_then(|text| text.parse().ok());
    ledger_stores::sqs::SqsSettings {
        dead_letter_url: env.optional("SQS_DLQ_URL").map(str::to_owned),
        parked_url: env.optional("SQS_PARKED_URL").map(str::to_owned),
        depth_lag_ms: lag_ms.unwrap_or(ledger_stores::sqs::DEPTH_LAG_MS),
        ..ledger_stores::sqs::SqsSettings::new(queue_url)
    }
}

/// The ledger clock of a process: by the hot tier's time, else the cold ledger's.
#[must_use]
pub fn clock(hot: Option<&Arc<dyn HotTier>>, cold: Option<&Arc<dyn ColdLedger>>) -> Arc<LedgerClock> {
    let mut references: Vec<Arc<dyn TimeReference>> = Vec::new();
    if let Some(hot) = hot {
        references.push(Arc::new(HotTime(Arc::clone(hot))));
    }
    if let Some(cold) = cold {
        references.push(Arc::new(ColdTime(Arc::clone(cold))));
    }
    Arc::new(LedgerClock::new(references, LedgerClockSettings::default()))
}

/// The same as a port.
#[must_use]
pub fn as_clock(clock: &Arc<LedgerClock>) -> Arc<dyn Clock> {
    Arc::clone(clock) as Arc<dyn Clock>
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_slow_by_the_shorter_of_the_urls_limits_and_a_cluster_has_lanes() {
        for (url, lanes, slow_us) in [
            ("redis://h?connect_timeout_ms=80&response_timeout_ms=50", Lanes::One, 50_000),
            ("redis+sentinel://h/name?connect_timeout_ms=20&response_timeout_ms=50", Lanes::One, 20_000),
            ("redis+cluster://h?connect_timeout_ms=80&response_timeout_ms=50", Lanes::Cluster, 50_000),
        ] {
            let settings = BreakerSettings { slow_us, ..BreakerSettings::default() };
            assert_eq!(breakers(&RedisUrl::parse(url).expect("valid")), (lanes, settings), "{url}");
        }
    }
}
