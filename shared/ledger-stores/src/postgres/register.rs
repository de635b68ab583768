//! The registering statement, for one key and for several together, and its sibling that only counts.

use std::collections::HashMap;

use ledger_domain::ports::{Registered, StoreError, Together};
use ledger_domain::{Record, Subject, Timestamp};
use sqlx::{Connection as _, PgConnection};

use super::row::{Columns, PgTime, claim_row, claim_rows};
use super::{ATTEMPTS, PostgresLedger, back_off, error, query, settle, sql};
use crate::cold::{is_own, replay_ms, won_after};

/// A registration asked for.
type Wanted<'a> = (&'a Subject, &'a Record);

impl PostgresLedger {
    pub(super) async fn register_claim(
        &self,
        subject: &Subject,
        wanted: &Record,
        replay_seconds: u64,
    ) -> Result<Registered, StoreError> {
        const OPERATION: &str = "register in the cold ledger";
        let now = wanted.first_seen_at;
        let mut conn = self.session(OPERATION).await?;
        let mut healed = false;
        let mut attempt = 1;
        loop {
            let error = match self.within(register_one(&mut conn, subject, wanted, replay_seconds)).await {
                Ok(registered) => return Ok(registered),
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

    pub(super) async fn register_all(
        &self,
        wanted: &[(Subject, Record)],
        replay_seconds: u64,
    ) -> Result<Together, StoreError> {
        const OPERATION: &str = "register together in the cold ledger";
        let Some(now) = wanted.iter().map(|(_, record)| record.first_seen_at).max() else {
            return Ok(Together::All(Vec::new()));
        };
        // In the order of the keys, as every batch takes its locks.
        let mut sorted: Vec<Wanted<'_>> = wanted.iter().map(|(subject, record)| (subject, record)).collect();
        sorted.sort_unstable_by_key(|(subject, _)| *subject);
        let mut conn = self.session(OPERATION).await?;
        let mut healed = false;
        let mut attempt = 1;
        let mut registered = loop {
            conn.begins();
            let registered = self.within(register_or_roll_back(&mut conn, &sorted, replay_seconds)).await;
            conn.is_over();
            let error = match registered {
                Ok(registered) => break registered,
                Err(error) => error,
            };
            if error::is_missing_month(&error) && !healed {
                healed = true;
                let at = wanted.iter().map(|(_, record)| record.first_seen_at);
                let ensured = self.ensure_months(&mut conn, at, now).await;
                settle(OPERATION, &mut conn, ensured)?;
            } else if error::is_lost_race(&error) && attempt < ATTEMPTS {
                back_off(attempt).await;
                attempt += 1;
            } else {
                return settle(OPERATION, &mut conn, Err(error));
            }
        };
        if let Some(registered) = &mut registered {
            let all: Option<Vec<_>> = wanted.iter().map(|(subject, _)| registered.remove(subject)).collect();
            let all = all.ok_or(sqlx::Error::RowNotFound);
            return settle(OPERATION, &mut conn, all).map(Together::All);
        }
        let subjects: Vec<_> = sorted.iter().map(|(subject, _)| *subject).collect();
        let standing = self.within(super::act::read_standing(&mut conn, &subjects)).await;
        let mut standing = settle(OPERATION, &mut conn, standing)?;
        let found = wanted.iter().map(|(subject, record)| {
            standing.remove(subject).filter(|standing| !standing.is_over(record.first_seen_at))
        });
        Ok(Together::None(found.collect()))
    }

    pub(super) async fn sight_claim(
        &self,
        subject: &Subject,
        sighted: &Record,
        replay_seconds: u64,
    ) -> Result<Option<Registered>, StoreError> {
        const OPERATION: &str = "count a sighting in the cold ledger";
        let mut conn = self.session(OPERATION).await?;
        let mut attempt = 1;
        loop {
            let sight = query(sql::SIGHT)
                .bind(subject.scope.as_str())
                .bind(subject.key.as_str())
                .bind(subject.key.is_parts())
                .bind(sighted.registration_id.as_bytes().as_slice())
                .bind(sighted.nonce.as_bytes().as_slice())
                .bind(PgTime(sighted.won_at))
                .bind(PgTime(sighted.first_seen_at))
                .bind(sighted.payload_hash.as_bytes().as_slice())
                .bind(replay_ms(replay_seconds));
            match self.within(sight.fetch_optional(&mut *conn)).await {
                Err(error) if error::is_lost_race(&error) && attempt < ATTEMPTS => {
                    back_off(attempt).await;
                    attempt += 1;
                }
                result => {
                    let row = result.and_then(|row| row.map(|row| claim_row(&row)).transpose());
                    let row = settle(OPERATION, &mut conn, row)?;
                    return Ok(row.map(|row| decide(row.record, sighted, won_after(sighted, replay_seconds))));
                }
            }
        }
    }
}

/// The statement: the rows that stand after it, each with the registration that was wanted under its key.
async fn run(
    conn: &mut PgConnection,
    wanted: &[Wanted<'_>],
    replay_seconds: u64,
) -> Result<HashMap<Subject, Record>, sqlx::Error> {
    let mut columns = Columns::default();
    for (subject, record) in wanted {
        columns.push_all(subject, record);
    }
    let rows = columns.bind_all(query(sql::REGISTER)).bind(replay_ms(replay_seconds)).fetch_all(conn).await?;
    Ok(claim_rows(&rows)?.into_iter().map(|claim| (claim.subject, claim.record)).collect())
}

async fn register_one(
    conn: &mut PgConnection,
    subject: &Subject,
    wanted: &Record,
    replay_seconds: u64,
) -> Result<Registered, sqlx::Error> {
    let standing = run(conn, &[(subject, wanted)], replay_seconds).await?.remove(subject);
    let standing = standing.ok_or(sqlx::Error::RowNotFound)?;
    Ok(decide(standing, wanted, won_after(wanted, replay_seconds)))
}

/// Registers all in one transaction, or rolls it back: `None`, where another registration stands under some key.
async fn register_or_roll_back(
    conn: &mut PgConnection,
    wanted: &[Wanted<'_>],
    replay_seconds: u64,
) -> Result<Option<HashMap<Subject, Record>>, sqlx::Error> {
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    let standing = run(&mut tx, wanted, replay_seconds).await?;
    let is_ours = |(subject, wanted): &Wanted<'_>| {
        let standing = standing.get(subject);
        standing.is_some_and(|standing| is_own(standing, wanted, won_after(wanted, replay_seconds)))
    };
    if wanted.iter().all(is_ours) {
        tx.commit().await?;
        return Ok(Some(standing));
    }
    tx.rollback().await?;
    Ok(None)
}

/// Reads the statement's own decision off the row that stands: of one it took over it is this check's nonce and win, and it
/// leaves those of any other alone.
fn decide(standing: Record, wanted: &Record, won_after: Timestamp) -> Registered {
    if is_own(&standing, wanted, won_after) {
        Registered::Ours(Box::new(standing))
    } else {
        Registered::Theirs(Box::new(standing))
    }
}
