//! The tiers of `local`: embedded, or real where a variable names one, each by itself.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ledger_domain::Tenant;
use ledger_domain::ports::{Clock, ColdLedger, ControlPlane, EventQueue, HotTier, PoisonSink, QueueConsumer, chain};
use ledger_lambda::env::{Env, EnvError, Tenants};
use ledger_lambda::freshness::Remembered;
use ledger_lambda::tiers;
use ledger_stores::aws;
use ledger_stores::clock::SystemClock;
use ledger_stores::dynamodb::DynamoControlPlane;
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::postgres::PostgresLedger;
use ledger_stores::sqlite::SqliteLedger;
use ledger_stores::sqlite_queue::{SqliteQueue, SqliteQueueSettings};
use ledger_stores::sqs::{SqsQueue, SqsSettings};
use ledger_stores::toml_file::TomlControlPlane;

/// Records of the in-memory tier, about 200 bytes each: half a gigabyte at most.
const HOT_RECORDS_MAX: usize = 2_500_000;
/// Connections to a real PostgreSQL.
const DATABASE_CONNECTIONS: u32 = 8;
/// How long a look into an empty SQS queue waits for a message: each start and each end waits for one such look. With 0 SQS
/// asks some of its servers only, and a message that waits may be missed.
const SQS_WAIT_SECONDS: u16 = 1;
/// The file that a running process holds locked.
const LOCK_FILE: &str = "lock";

/// The hot tier's state, where no table holds it.
const CONTROL_FILE: &str = "control.json";

/// Settings that are not tiers.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where to listen.
    pub(crate) addr: String,
    /// The folder of the embedded tiers.
    pub(crate) data: PathBuf,
    /// The tenants served: all where `LEDGER_TENANTS` is unset, here only.
    pub(crate) tenants: Tenants,
    /// The tenant of scopes that name none.
    pub(crate) default_tenant: Option<Tenant>,
}

impl Settings {
    /// From the environment.
    pub(crate) fn of(env: &Env) -> Result<Self, EnvError> {
        Ok(Self {
            addr: env.optional("LEDGER_ADDR").unwrap_or("127.0.0.1:8080").to_owned(),
            data: env.optional("LEDGER_DATA").unwrap_or("./ledger-data").into(),
            tenants: env.tenants()?.unwrap_or(Tenants::All),
            default_tenant: env.default_tenant()?,
        })
    }
}

/// The tiers in use, and in words which.
pub(crate) struct Tiers {
    pub(crate) hot: Arc<dyn HotTier>,
    pub(crate) cold: Arc<dyn ColdLedger>,
    pub(crate) queue: Arc<dyn EventQueue>,
    pub(crate) consumer: Arc<dyn QueueConsumer>,
    /// Where messages go that are no facts; without it they end in the dead-letter queue.
    pub(crate) poison: Option<Arc<dyn PoisonSink>>,
    /// Whether nobody but this process sends to the queue.
    pub(crate) queue_is_ours: bool,
    pub(crate) control_plane: Arc<dyn ControlPlane>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The clock's offset, where it has one to remember.
    pub(crate) remembered: Vec<Arc<dyn Remembered>>,
    pub(crate) said: Vec<String>,
    /// Where the policies come from, for an error about them.
    pub(crate) policies_named_by: &'static str,
    /// Holds the folder for this process alone, where a tier is embedded.
    pub(crate) lock: Option<File>,
}

/// Why `local` does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error("{what}: {why}")]
    Tier { what: &'static str, why: String },
}

impl StartError {
    /// A tier that cannot be used, with all its causes.
    pub(crate) fn tier(what: &'static str, error: &dyn std::error::Error) -> Self {
        Self::Tier { what, why: chain(error) }
    }
}

impl Tiers {
    /// Opens them.
    pub(crate) async fn open(env: &Env, data: &Path) -> Result<Self, StartError> {
        let all_real = ["REDIS_URL", "DATABASE_URL", "SQS_QUEUE_URL"].iter().all(|name| env.optional(name).is_some());
        let lock = if all_real { None } else { Some(lock(data)?) };
        let mut said = Vec::new();
        let config = if env.optional("SQS_QUEUE_URL").or(env.optional("POLICY_TABLE")).is_some() {
            Some(aws::load().await)
        } else {
            None
        };
        let real_hot = env.optional("REDIS_URL").map(tiers::redis).transpose()?;
        let cold: Arc<dyn ColdLedger> = match env.optional("DATABASE_URL") {
            Some(url) => {
                let ledger = tiers::postgres(url, DATABASE_CONNECTIONS)?;
                PostgresLedger::migrate(ledger.pool())
                    .await
                    .map_err(|error| StartError::tier("DATABASE_URL", &error))?;
                said.push("cold ledger  PostgreSQL (DATABASE_URL)".to_owned());
                Arc::new(ledger)
            }
            None => {
                let path = data.join("ledger.sqlite");
                said.push(format!("cold ledger  SQLite, {}", path.display()));
                Arc::new(SqliteLedger::open(&path).await.map_err(|error| StartError::tier("LEDGER_DATA", &error))?)
            }
        };
        let mut remembered: Vec<Arc<dyn Remembered>> = Vec::new();
        // The clock is the hot tier's: a process of its own where that is Redis, this process where it is memory.
        let (hot, clock): (Arc<dyn HotTier>, Arc<dyn Clock>) = match real_hot {
            Some(hot) => {
                // Later PostgreSQL may stand in for it; a URL that leads nowhere is named now.
                hot.time().await.map_err(|error| StartError::tier("REDIS_URL", &error))?;
                let clock = tiers::clock(Some(&hot), Some(&cold));
                clock.measure().await.map_err(|error| StartError::tier("REDIS_URL", &error))?;
                clock.refresh_in_background();
                remembered.push(Arc::clone(&clock) as _);
                said.push("hot tier     Redis (REDIS_URL)".to_owned());
                (hot, tiers::as_clock(&clock))
            }
            None => {
                let clock: Arc<dyn Clock> = Arc::new(SystemClock);
                said.push("hot tier     in memory".to_owned());
                (Arc::new(MemoryHotTier::new(HOT_RECORDS_MAX, Arc::clone(&clock))), clock)
            }
        };
        type Queue = (Arc<dyn EventQueue>, Arc<dyn QueueConsumer>, Option<Arc<dyn PoisonSink>>);
        let queue_is_ours = env.optional("SQS_QUEUE_URL").is_none();
        let (queue, consumer, poison): Queue = match (env.optional("SQS_QUEUE_URL"), &config) {
            (Some(url), Some(config)) => {
                said.push("event queue  SQS (SQS_QUEUE_URL)".to_owned());
                let settings = SqsSettings { receive_wait_seconds: SQS_WAIT_SECONDS, ..tiers::sqs_settings(url, env) };
                let parks = settings.parked_url.is_some();
                let queue = Arc::new(SqsQueue::new(config, settings));
                (Arc::clone(&queue) as _, Arc::clone(&queue) as _, parks.then_some(queue as _))
            }
            (Some(_) | None, _) => {
                let path = data.join("queue.sqlite");
                said.push(format!("event queue  SQLite, {}", path.display()));
                let settings = SqliteQueueSettings::default();
                let queue = SqliteQueue::open_alone(&path, Arc::clone(&clock), settings).await;
                let queue = Arc::new(queue.map_err(|error| StartError::tier("LEDGER_DATA", &error))?);
                (Arc::clone(&queue) as _, Arc::clone(&queue) as _, Some(queue as _))
            }
        };
        let state = data.join(CONTROL_FILE);
        let (policies_named_by, control_plane): (_, Arc<dyn ControlPlane>) =
            match (env.optional("POLICY_TABLE"), &config) {
                (Some(table), Some(config)) => {
                    said.push(format!("policies     DynamoDB, table {table} (POLICY_TABLE)"));
                    ("POLICY_TABLE", Arc::new(DynamoControlPlane::new(config, table)))
                }
                (Some(_) | None, _) => match env.optional("LEDGER_POLICIES") {
                    Some(path) => {
                        said.push(format!("policies     {path} (LEDGER_POLICIES)"));
                        ("LEDGER_POLICIES", Arc::new(TomlControlPlane::required(path).with_state(state)))
                    }
                    None => {
                        let path = data.join("policies.toml");
                        said.push(format!("policies     {}, where it is there", path.display()));
                        ("policies.toml in LEDGER_DATA", Arc::new(TomlControlPlane::optional(path).with_state(state)))
                    }
                },
            };
        Ok(Self {
            hot,
            cold,
            queue,
            consumer,
            poison,
            queue_is_ours,
            control_plane,
            clock,
            remembered,
            said,
            policies_named_by,
            lock,
        })
    }
}

/// Takes the folder for this process alone: the in-memory tier of a second one would answer NEW to what the first one knows.
/// The lock ends with the process, however it ends.
fn lock(data: &Path) -> Result<File, StartError> {
    let failed = |error: std::io::Error| StartError::tier("LEDGER_DATA", &error);
    std::fs::create_dir_all(data).map_err(failed)?;
    let file = File::create(data.join(LOCK_FILE)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(failed(error)),
        Err(TryLockError::WouldBlock) => {
            let why = format!("{} is in use by another process", data.display());
            Err(StartError::Tier { what: "LEDGER_DATA", why })
        }
    }
}
