//! The cold ledger on PostgreSQL 15 or newer.
//!
//! Connections may go through RDS Proxy, which pins a session to a connection for named statements, `SET`, temporary
//! tables and session locks. So no query here is persistent, and none of those is used. Sessions run in UTC: sqlx says so
//! when it connects.

mod act;
mod error;
mod live;
mod persist;
#[cfg(test)]
mod plan_tests;
mod register;
mod row;
mod search;
mod sql;

use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{
    ActedCold, ClaimRow, ColdLedger, HistoryPage, HistoryQuery, Persisted, Position, Registered, StoreError, Together,
};
use ledger_domain::{Fact, PayloadHash, Record, Subject, Tenant, Timestamp};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

use self::row::PgTime;

/// How often a statement that lost a race (deadlock, serialization failure) is tried.
const ATTEMPTS: u16 = 5;

/// Bounds on what the ledger may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostgresConfig {
    /// Connections open at once.
    pub max_connections: u32,
    /// How long a call waits for a connection, a new one included.
    pub acquire_timeout_ms: u64,
    /// How long a call waits for the server after that, all its statements together.
    pub operation_timeout_ms: u64,
}

impl Default for PostgresConfig {
    /// 4 connections, 1 s for one of them, 10 s for the work.
    fn default() -> Self {
        Self { max_connections: 4, acquire_timeout_ms: 1_000, operation_timeout_ms: 10_000 }
    }
}

/// The cold ledger on PostgreSQL.
#[derive(Debug, Clone)]
pub struct PostgresLedger {
    pool: PgPool,
    limit: Duration,
}

impl PostgresLedger {
    /// A ledger at `url` (`postgres://user:password@host/database?sslmode=verify-full`). Connects when first used, so that
    /// a function starts without waiting.
    ///
    /// # Errors
    /// [`StoreError::Rejected`] where the URL cannot be read.
    pub fn connect_lazy(url: &str, config: &PostgresConfig) -> Result<Self, StoreError> {
        let options =
            PgConnectOptions::from_str(url).map_err(|e| StoreError::rejected("read the database's URL", e))?;
        let options = options.application_name("dedup-ledger").statement_cache_capacity(0);
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(Duration::from_millis(config.acquire_timeout_ms))
            .connect_lazy_with(options);
        Ok(Self { pool, limit: Duration::from_millis(config.operation_timeout_ms) })
    }

    /// The connections, for what is no part of the port.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Brings the schema up to this release. Needs the tables' owner and a direct connection: it holds a session lock, so
    /// that two runs follow each other.
    ///
    /// # Errors
    /// [`StoreError::DidNotHappen`] where the database does not answer or its schema is not the one expected; each
    /// migration is a transaction, so those before it stand.
    pub async fn migrate(pool: &PgPool) -> Result<(), StoreError> {
        const OPERATION: &str = "migrate the cold ledger";
        let mut conn = pool.acquire().await.map_err(|e| StoreError::did_not_happen(OPERATION, e))?;
        // A run that failed, or was given up in the middle, leaves the lock to its session, and the next one would wait for it
        // for ever.
        conn.close_on_drop();
        // What `run` calls; the future of `run` itself cannot be sent to another thread.
        let migrated = sqlx::migrate!("../../migrations/postgres").run_direct(None, &mut *conn, false).await;
        migrated.map_err(|e| StoreError::did_not_happen(OPERATION, e))
    }

    /// A connection. Nothing has been sent where there is none.
    async fn session(&self, operation: &'static str) -> Result<Session, StoreError> {
        let conn = self.pool.acquire().await.map_err(|e| StoreError::did_not_happen(operation, e))?;
        Ok(Session { conn, is_in_transaction: false })
    }

    /// Gives the work its time limit. What is not answered within it may have happened.
    async fn within<T>(&self, work: impl Future<Output = Result<T, sqlx::Error>> + Send) -> Result<T, sqlx::Error> {
        match tokio::time::timeout(self.limit, work).await {
            Ok(result) => result,
            Err(elapsed) => Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed))),
        }
    }

    /// Creates the months of `at` that are missing, and says which.
    async fn ensure_months(
        &self,
        conn: &mut Session,
        at: impl IntoIterator<Item = Timestamp> + Send,
        now: Timestamp,
    ) -> Result<Vec<String>, sqlx::Error> {
        // `YYYY-MM` of RFC 3339: one time stands for its month.
        let months: std::collections::BTreeMap<String, Timestamp> =
            at.into_iter().map(|at| (at.to_string().chars().take(7).collect(), at)).collect();
        let mut created = Vec::new();
        for (month, at) in months {
            let ensure = sqlx::query_scalar(sql::ENSURE_MONTH).persistent(false).bind(PgTime(at)).bind(PgTime(now));
            if self.within(ensure.fetch_one(&mut **conn)).await? {
                tracing::warn!(month, "a month of history was missing and has been created");
                created.push(month);
            }
        }
        Ok(created)
    }
}

/// A connection for the length of an operation.
///
/// Who asked may go away in the middle: a caller hangs up, a check is given up. Let go of during its `BEGIN`, the client (sqlx 0.9.0)
/// counts no transaction, though the server has one; whatever the connection did next, for somebody else, would be acknowledged
/// and never be committed. So a connection that is let go of in a transaction is closed.
struct Session {
    conn: PoolConnection<Postgres>,
    is_in_transaction: bool,
}

impl Session {
    /// A transaction is about to begin.
    fn begins(&mut self) {
        self.is_in_transaction = true;
    }

    /// Whatever began is over: committed, rolled back, or answered by an error.
    fn is_over(&mut self) {
        self.is_in_transaction = false;
    }
}

impl std::ops::Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl std::ops::DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_in_transaction {
            self.conn.close_on_drop();
        }
    }
}

/// A query that leaves no statement behind on the server.
fn query(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}

/// Maps a result, and keeps a connection in doubt from being used again.
fn settle<T>(operation: &'static str, session: &mut Session, result: Result<T, sqlx::Error>) -> Result<T, StoreError> {
    result.map_err(|e| {
        if e.as_database_error().is_none() {
            session.conn.close_on_drop();
        }
        error::map(operation, e)
    })
}

/// Waits a little before the next try: up to 20 ms, then 40 ms, ..., at random, so that those who met do not meet again.
async fn back_off(attempt: u16) {
    let mut bytes = [0; 2];
    // Without randomness the wait is just its shortest.
    let random = getrandom::fill(&mut bytes).map_or(0, |()| u16::from_be_bytes(bytes));
    let millis = 1 + u64::from(random) % (20 * u64::from(attempt));
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[async_trait]
impl ColdLedger for PostgresLedger {
    async fn register(
        &self,
        subject: &Subject,
        wanted: &Record,
        replay_seconds: u64,
    ) -> Result<Registered, StoreError> {
        self.register_claim(subject, wanted, replay_seconds).await
    }

    async fn sight(
        &self,
        subject: &Subject,
        sighted: &Record,
        replay_seconds: u64,
    ) -> Result<Option<Registered>, StoreError> {
        self.sight_claim(subject, sighted, replay_seconds).await
    }

    async fn register_together(
        &self,
        wanted: &[(Subject, Record)],
        replay_seconds: u64,
    ) -> Result<Together, StoreError> {
        self.register_all(wanted, replay_seconds).await
    }

    async fn act(
        &self,
        subject: &Subject,
        claim: &ClaimId,
        act: &Act,
        now: Timestamp,
    ) -> Result<ActedCold, StoreError> {
        self.act_on_claim(subject, claim, act, now).await
    }

    async fn standing(&self, subject: &Subject) -> Result<Option<Record>, StoreError> {
        self.read_claim(subject).await
    }

    async fn persist(&self, facts: &[Fact], now: Timestamp) -> Result<Persisted, StoreError> {
        self.persist_facts(facts, now).await
    }

    async fn newest_live(
        &self,
        now: Timestamp,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<ClaimRow>, StoreError> {
        self.read_newest_live(now, after, limit).await
    }

    async fn purge(&self, ended_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        self.purge_claims(ended_before, limit).await
    }

    async fn by_key(&self, subject: &Subject, query: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        self.read_by_key(subject, query).await
    }

    async fn by_hash(
        &self,
        tenant: &Tenant,
        payload: &PayloadHash,
        query: &HistoryQuery,
    ) -> Result<HistoryPage, StoreError> {
        self.read_by_hash(tenant, payload, query).await
    }

    async fn note_drained(&self, at: Timestamp) -> Result<(), StoreError> {
        const OPERATION: &str = "note how far facts are drained";
        let mut conn = self.session(OPERATION).await?;
        let result = self.within(query(sql::NOTE_DRAINED).bind(PgTime(at)).execute(&mut *conn)).await;
        settle(OPERATION, &mut conn, result.map(drop))
    }

    async fn drained_until(&self) -> Result<Option<Timestamp>, StoreError> {
        const OPERATION: &str = "read how far facts are drained";
        let mut conn = self.session(OPERATION).await?;
        let read = sqlx::query_scalar::<_, PgTime>(sql::DRAINED_UNTIL).persistent(false);
        let result = self.within(read.fetch_optional(&mut *conn)).await;
        Ok(settle(OPERATION, &mut conn, result)?.map(|at| at.0))
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        const OPERATION: &str = "read the cold ledger's time";
        let mut conn = self.session(OPERATION).await?;
        let read = sqlx::query_scalar::<_, PgTime>(sql::TIME).persistent(false);
        let result = self.within(read.fetch_one(&mut *conn)).await;
        Ok(settle(OPERATION, &mut conn, result)?.0)
    }
}
