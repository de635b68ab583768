//! The cold ledger's embedded twin: one SQLite file, the same contract.
//!
//! Writers take `BEGIN IMMEDIATE`, so one at a time reads, merges by the domain's own rules and writes; WAL lets readers go
//! on. A commit is on disk when it returns (`synchronous = FULL`).

mod error;
mod row;
mod write;

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{
    ActedCold, ClaimRow, ColdLedger, HistoryPage, HistoryQuery, Persisted, Position, Registered, StoreError, Together,
};
use ledger_domain::{Fact, PayloadHash, Record, Subject, Tenant, Timestamp};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{Sqlite, Transaction};

use self::error::map;
use self::row::{claim_row, history_row, time};
use crate::cold::{NEWEST, Window, check_plausible, coalesce, live_rows, won_after};

/// How long a writer waits for another one.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Readers and writers open at once.
const MAX_CONNECTIONS: u32 = 4;

/// Live rows older than a place (parameters 2 and 3) whose window is not over at 1, newest first.
const NEWEST_LIVE: &str = "SELECT * FROM dedup_claim \
     WHERE window_ends_at > ?1 AND (first_seen_at, registration_id) < (?2, ?3) \
     ORDER BY first_seen_at DESC, registration_id DESC LIMIT ?4";

/// Removes rows of keys all of whose windows ended before 1. History, from which false NEWs are told here, has them all.
const PURGE: &str = "DELETE FROM dedup_claim WHERE rowid IN ( \
     SELECT c.rowid FROM dedup_claim c WHERE c.window_ends_at < ?1 AND NOT EXISTS ( \
         SELECT 1 FROM dedup_ledger l WHERE l.scope = c.scope AND l.key = c.key AND l.key_is_parts = c.key_is_parts \
                                        AND l.window_ends_at >= ?1) \
     ORDER BY c.window_ends_at LIMIT ?2)";

/// The cold ledger in one SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteLedger {
    pool: SqlitePool,
}

impl SqliteLedger {
    /// Opens the file at `path`, creates it where there is none, and brings its schema up to this release.
    ///
    /// # Errors
    /// [`StoreError::DidNotHappen`] where the file cannot be opened or its schema is not the one expected.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        const OPERATION: &str = "open the embedded cold ledger";
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let pool = SqlitePoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .connect_with(options)
            .await
            .map_err(|e| StoreError::did_not_happen(OPERATION, e))?;
        sqlx::migrate!("../../migrations/sqlite")
            .run(&pool)
            .await
            .map_err(|e| StoreError::did_not_happen(OPERATION, e))?;
        Ok(Self { pool })
    }

    /// A transaction that holds the file's one write lock.
    async fn begin(&self, operation: &'static str) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| StoreError::did_not_happen(operation, e))
    }

    /// What stands under each key inside its window, as of one moment.
    async fn standing_together(&self, wanted: &[(Subject, Record)]) -> Result<Vec<Option<Record>>, sqlx::Error> {
        let mut tx = self.pool.begin().await?;
        let mut found = Vec::with_capacity(wanted.len());
        for (subject, record) in wanted {
            let standing = write::read_claim(&mut tx, subject).await?;
            found.push(standing.filter(|standing| !standing.is_over(record.first_seen_at)));
        }
        tx.rollback().await?;
        Ok(found)
    }
}

#[async_trait]
impl ColdLedger for SqliteLedger {
    async fn register(
        &self,
        subject: &Subject,
        wanted: &Record,
        replay_seconds: u64,
    ) -> Result<Registered, StoreError> {
        const OPERATION: &str = "register in the embedded cold ledger";
        let won_after = won_after(wanted, replay_seconds);
        let mut tx = self.begin(OPERATION).await?;
        let work = async {
            let registered = write::register(&mut tx, subject, wanted, won_after).await?;
            tx.commit().await?;
            Ok(registered)
        };
        work.await.map_err(|e| map(OPERATION, e))
    }

    async fn sight(
        &self,
        subject: &Subject,
        sighted: &Record,
        replay_seconds: u64,
    ) -> Result<Option<Registered>, StoreError> {
        const OPERATION: &str = "count a sighting in the embedded cold ledger";
        let won_after = won_after(sighted, replay_seconds);
        let mut tx = self.begin(OPERATION).await?;
        let work = async {
            let found = write::sight_standing(&mut tx, subject, sighted, won_after).await?;
            tx.commit().await?;
            Ok(found)
        };
        work.await.map_err(|e| map(OPERATION, e))
    }

    async fn register_together(
        &self,
        wanted: &[(Subject, Record)],
        replay_seconds: u64,
    ) -> Result<Together, StoreError> {
        const OPERATION: &str = "register together in the embedded cold ledger";
        let mut tx = self.begin(OPERATION).await?;
        let work = async {
            let mut all = Vec::with_capacity(wanted.len());
            for (subject, record) in wanted {
                match write::register(&mut tx, subject, record, won_after(record, replay_seconds)).await? {
                    Registered::Ours(record) => all.push(*record),
                    Registered::Theirs(_) => {
                        tx.rollback().await?;
                        return self.standing_together(wanted).await.map(Together::None);
                    }
                }
            }
            tx.commit().await?;
            Ok(Together::All(all))
        };
        work.await.map_err(|e| map(OPERATION, e))
    }

    async fn act(
        &self,
        subject: &Subject,
        claim: &ClaimId,
        act: &Act,
        now: Timestamp,
    ) -> Result<ActedCold, StoreError> {
        const OPERATION: &str = "act on a claim in the embedded cold ledger";
        let mut tx = self.begin(OPERATION).await?;
        let work = async {
            let acted = write::act(&mut tx, subject, claim, act, now).await?;
            tx.commit().await?;
            Ok(acted)
        };
        work.await.map_err(|e| map(OPERATION, e))
    }

    async fn standing(&self, subject: &Subject) -> Result<Option<Record>, StoreError> {
        const OPERATION: &str = "read a live row of the embedded cold ledger";
        let mut conn = self.pool.acquire().await.map_err(|e| StoreError::did_not_happen(OPERATION, e))?;
        write::read_claim(&mut conn, subject).await.map_err(|e| map(OPERATION, e))
    }

    async fn persist(&self, facts: &[Fact], now: Timestamp) -> Result<Persisted, StoreError> {
        const OPERATION: &str = "persist facts in the embedded cold ledger";
        for fact in facts {
            check_plausible(OPERATION, fact.record.first_seen_at, now)?;
        }
        let mut tx = self.begin(OPERATION).await?;
        let work = async {
            let mut persisted = Persisted::default();
            for key in coalesce(facts) {
                let (record, false_new) = write::persist(&mut tx, &key).await?;
                persisted.false_new += false_new;
                persisted.claims.push(ClaimRow { subject: key.subject.clone(), record });
            }
            tx.commit().await?;
            Ok(persisted)
        };
        work.await.map_err(|e| map(OPERATION, e))
    }

    async fn newest_live(
        &self,
        now: Timestamp,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<ClaimRow>, StoreError> {
        let before = after.unwrap_or(NEWEST);
        let rows = sqlx::query(NEWEST_LIVE)
            .bind(now.as_millis())
            .bind(before.first_seen_at.as_millis())
            .bind(before.registration_id.as_bytes().as_slice())
            .bind(live_rows(limit))
            .fetch_all(&self.pool)
            .await;
        let rows = rows.and_then(|rows| rows.iter().map(claim_row).collect());
        rows.map_err(|e| map("read live rows", e))
    }

    async fn purge(&self, ended_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        const OPERATION: &str = "purge the embedded cold ledger";
        let mut tx = self.begin(OPERATION).await?;
        let work = async {
            let purge = sqlx::query(PURGE).bind(ended_before.as_millis()).bind(live_rows(limit));
            let purged = purge.execute(&mut *tx).await?.rows_affected();
            tx.commit().await?;
            Ok(purged)
        };
        work.await.map_err(|e| map(OPERATION, e))
    }

    async fn by_key(&self, subject: &Subject, query: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        let Some(window) = Window::of(query) else { return Ok(HistoryPage::default()) };
        let rows = sqlx::query(
            "SELECT * FROM dedup_ledger WHERE scope = ?1 AND key = ?2 AND key_is_parts = ?3 \
             AND first_seen_at >= ?4 AND first_seen_at <= ?5 \
             AND (?6 IS NULL OR first_seen_at < ?5 OR registration_id < ?6) \
             ORDER BY first_seen_at DESC, registration_id DESC LIMIT ?7",
        )
        .bind(subject.scope.as_str())
        .bind(subject.key.as_str())
        .bind(subject.key.is_parts())
        .bind(window.from.as_millis())
        .bind(window.last.as_millis())
        .bind(window.below_id.as_ref().map(|id| id.as_bytes().as_slice()))
        .bind(window.rows_wanted())
        .fetch_all(&self.pool)
        .await;
        rows.and_then(|rows| page(&rows, &window)).map_err(|e| map("read history by key", e))
    }

    async fn by_hash(
        &self,
        tenant: &Tenant,
        payload: &PayloadHash,
        query: &HistoryQuery,
    ) -> Result<HistoryPage, StoreError> {
        let Some(window) = Window::of(query) else { return Ok(HistoryPage::default()) };
        let rows = sqlx::query(
            "SELECT * FROM dedup_ledger WHERE payload_sha256 = ?1 AND substr(scope, 1, instr(scope, ':') - 1) = ?2 \
             AND first_seen_at >= ?3 AND first_seen_at <= ?4 \
             AND (?5 IS NULL OR first_seen_at < ?4 OR registration_id < ?5) \
             ORDER BY first_seen_at DESC, registration_id DESC LIMIT ?6",
        )
        .bind(payload.as_bytes().as_slice())
        .bind(tenant.as_str())
        .bind(window.from.as_millis())
        .bind(window.last.as_millis())
        .bind(window.below_id.as_ref().map(|id| id.as_bytes().as_slice()))
        .bind(window.rows_wanted())
        .fetch_all(&self.pool)
        .await;
        rows.and_then(|rows| page(&rows, &window)).map_err(|e| map("read history by payload", e))
    }

    async fn note_drained(&self, at: Timestamp) -> Result<(), StoreError> {
        let noted = sqlx::query(
            "INSERT INTO dedup_watermark AS t (one_row, drained_until) VALUES (1, ?1) \
             ON CONFLICT (one_row) DO UPDATE SET drained_until = max(t.drained_until, excluded.drained_until)",
        )
        .bind(at.as_millis())
        .execute(&self.pool)
        .await;
        noted.map(drop).map_err(|e| map("note how far facts are drained", e))
    }

    async fn drained_until(&self) -> Result<Option<Timestamp>, StoreError> {
        let read = sqlx::query_scalar("SELECT drained_until FROM dedup_watermark").fetch_optional(&self.pool).await;
        read.and_then(|at| at.map(time).transpose()).map_err(|e| map("read how far facts are drained", e))
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        let read = sqlx::query_scalar("SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER)");
        read.fetch_one(&self.pool).await.and_then(time).map_err(|e| map("read the cold ledger's time", e))
    }
}

fn page(rows: &[SqliteRow], window: &Window) -> Result<HistoryPage, sqlx::Error> {
    let rows = rows.iter().map(history_row).collect::<Result<_, _>>()?;
    Ok(window.page(rows))
}
