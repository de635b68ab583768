//! Live rows: newest first, and the purge.

use ledger_domain::ports::{ClaimRow, Position, StoreError};
use ledger_domain::{RegistrationId, Timestamp};

use super::row::{PgTime, claim_rows};
use super::{PostgresLedger, query, settle, sql};
use crate::cold::{NEWEST, WINDOW_MAX_MS, live_rows};

/// How far back one statement looks for live rows, in milliseconds: 6 hours. Rows stay for weeks after their window; one
/// statement that had to pass over all of them would not come to its end within the time limit, and no pass ever would.
const SLICE_MS: i64 = 6 * 3_600_000;

impl PostgresLedger {
    pub(super) async fn read_newest_live(
        &self,
        now: Timestamp,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<ClaimRow>, StoreError> {
        const OPERATION: &str = "read live rows";
        // No window is longer: what was first seen before has ended.
        let floor = now.plus_millis(-WINDOW_MAX_MS);
        let mut before = after.unwrap_or(NEWEST);
        // A page mostly goes on where the last one ended; else the newest row says where to look.
        let mut newest = after.map(|after| after.first_seen_at);
        let mut open = live_rows(limit);
        let mut rows = Vec::new();
        let mut conn = self.session(OPERATION).await?;
        while open > 0 {
            if newest.is_none() {
                let look = sqlx::query_scalar::<_, PgTime>(sql::NEWEST_BEFORE)
                    .persistent(false)
                    .bind(PgTime(floor))
                    .bind(PgTime(before.first_seen_at))
                    .bind(before.registration_id.as_bytes().as_slice());
                let found = self.within(look.fetch_optional(&mut *conn)).await;
                newest = settle(OPERATION, &mut conn, found)?.map(|at| at.0);
            }
            let Some(from) = newest.take().map(|newest| newest.plus_millis(-SLICE_MS)) else { break };
            let read = query(sql::NEWEST_LIVE)
                .bind(PgTime(from))
                .bind(PgTime(before.first_seen_at))
                .bind(before.registration_id.as_bytes().as_slice())
                .bind(PgTime(now))
                .bind(open);
            let found = self.within(read.fetch_all(&mut *conn)).await;
            let found = found.and_then(|found| claim_rows(&found));
            let found = settle(OPERATION, &mut conn, found)?;
            open -= i64::try_from(found.len()).unwrap_or(i64::MAX);
            rows.extend(found);
            before = Position { first_seen_at: from, registration_id: RegistrationId::from_bytes([0; 8]) };
        }
        Ok(rows)
    }

    pub(super) async fn purge_claims(&self, ended_before: Timestamp, limit: usize) -> Result<u64, StoreError> {
        const OPERATION: &str = "purge the cold ledger";
        let mut conn = self.session(OPERATION).await?;
        let purge = query(sql::PURGE).bind(PgTime(ended_before)).bind(live_rows(limit));
        let purged = self.within(purge.execute(&mut *conn)).await;
        settle(OPERATION, &mut conn, purged.map(|done| done.rows_affected()))
    }
}
