//! The registering statement, and its sibling that only counts.

use ledger_domain::ports::{Registered, StoreError};
use ledger_domain::{Record, Subject, Timestamp};
use sqlx::PgConnection;

use super::row::{Columns, PgTime, claim_row};
use super::{ATTEMPTS, PostgresLedger, back_off, error, query, settle, sql};
use crate::cold::{is_own, won_after};

const OPERATION: &str = "register in the cold ledger";

impl PostgresLedger {
    pub(super) async fn register_claim(
        &self,
        subject: &Subject,
        wanted: &Record,
        replay_seconds: u64,
    ) -> Result<Registered, StoreError> {
        let now = wanted.first_seen_at;
        let won_after = won_after(wanted, replay_seconds);
        let mut conn = self.session(OPERATION).await?;
        let mut healed = false;
        let mut attempt = 1;
        loop {
            let error = match self.within(run(&mut conn, subject, wanted, won_after)).await {
                Ok(standing) => return Ok(decide(standing, wanted, won_after)),
                Err(error) => error,
            };
            if error::is_missing_month(&error) && !healed {
                healed = true;
                let ensured = self.ensure_months(&mut conn, [now], now).await;
                settle(OPERATION, &mut conn, ensured)?;
            } else if error::is_lost_race(&error) && attempt < ATTEMPTS {
                back_off(attempt).await;
                attempt += 1;
            } else {
                return settle(OPERATION, &mut conn, Err(error));
            }
        }
    }
}

impl PostgresLedger {
    pub(super) async fn sight_claim(
        &self,
        subject: &Subject,
        sighted: &Record,
        replay_seconds: u64,
    ) -> Result<Option<Registered>, StoreError> {
        const OPERATION: &str = "count a sighting in the cold ledger";
        let won_after = won_after(sighted, replay_seconds);
        let mut conn = self.session(OPERATION).await?;
        let mut attempt = 1;
        loop {
            let sight = query(sql::SIGHT)
                .bind(subject.scope.as_str())
                .bind(subject.key.as_str())
                .bind(subject.key.is_parts())
                .bind(sighted.nonce.as_bytes().as_slice())
                .bind(PgTime(won_after))
                .bind(PgTime(sighted.first_seen_at))
                .bind(sighted.payload_hash.as_bytes().as_slice());
            match self.within(sight.fetch_optional(&mut *conn)).await {
                Err(error) if error::is_lost_race(&error) && attempt < ATTEMPTS => {
                    back_off(attempt).await;
                    attempt += 1;
                }
                result => {
                    let row = result.and_then(|row| row.map(|row| claim_row(&row)).transpose());
                    let row = settle(OPERATION, &mut conn, row)?;
                    return Ok(row.map(|row| decide(row.record, sighted, won_after)));
                }
            }
        }
    }
}

async fn run(
    conn: &mut PgConnection,
    subject: &Subject,
    wanted: &Record,
    won_after: Timestamp,
) -> Result<Record, sqlx::Error> {
    let mut columns = Columns::default();
    columns.push(subject, wanted);
    let row = columns.bind(query(sql::REGISTER)).bind(PgTime(won_after)).fetch_one(conn).await?;
    Ok(claim_row(&row)?.record)
}

/// Reads the statement's own decision off the row that stands: it leaves the nonce and the time of the win alone.
fn decide(standing: Record, wanted: &Record, won_after: Timestamp) -> Registered {
    if is_own(&standing, wanted, won_after) {
        Registered::Ours(Box::new(standing))
    } else {
        Registered::Theirs(Box::new(standing))
    }
}
