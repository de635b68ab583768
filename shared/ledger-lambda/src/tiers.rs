//! The real tiers, each from its variable. A wrong one is an error that names it; nothing falls back to a fake.

use std::sync::Arc;

use ledger_domain::ports::{Clock, ColdLedger, HotTier};
use ledger_stores::clock::{ColdTime, HotTime, LedgerClock, LedgerClockSettings, TimeReference};

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

/// What `SQS_QUEUE_URL` names, and `SQS_DLQ_URL` where it is set.
#[cfg(feature = "sqs")]
#[must_use]
pub fn sqs(config: &ledger_stores::aws::SdkConfig, queue_url: &str, env: &Env) -> ledger_stores::sqs::SqsQueue {
    let settings = ledger_stores::sqs::SqsSettings {
        dead_letter_url: env.optional("SQS_DLQ_URL").map(str::to_owned),
        ..ledger_stores::sqs::SqsSettings::new(queue_url)
    };
    ledger_stores::sqs::SqsQueue::new(config, settings)
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
