//! What a claim's holder does, and what stands.

use std::collections::HashMap;

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{ActedCold, StoreError};
use ledger_domain::{ContentType, FailReason, Record, Subject, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres};

use super::row::{PgTime, claim_row, claim_rows};
use super::{ATTEMPTS, PostgresLedger, back_off, error, query, settle, sql};

impl PostgresLedger {
    pub(super) async fn act_on_claim(
        &self,
        subject: &Subject,
        claim: &ClaimId,
        act: &Act,
        now: Timestamp,
    ) -> Result<ActedCold, StoreError> {
        const OPERATION: &str = "act on a claim in the cold ledger";
        let mut conn = self.session(OPERATION).await?;
        let mut attempt = 1;
        let done = loop {
            match self.within(statement(subject, claim, act, now).fetch_optional(&mut *conn)).await {
                Err(error) if error::is_lost_race(&error) && attempt < ATTEMPTS => {
                    back_off(attempt).await;
                    attempt += 1;
                }
                result => {
                    let row = result.and_then(|row| row.map(|row| claim_row(&row)).transpose());
                    break settle(OPERATION, &mut conn, row)?;
                }
            }
        };
        if let Some(row) = done {
            return Ok(ActedCold::Done(Box::new(row.record)));
        }
        let standing = self.within(read_standing(&mut conn, &[subject])).await;
        let standing = settle(OPERATION, &mut conn, standing)?.remove(subject);
        Ok(ActedCold::Unchanged(standing.map(Box::new)))
    }

    pub(super) async fn read_claim(&self, subject: &Subject) -> Result<Option<Record>, StoreError> {
        const OPERATION: &str = "read a live row";
        let mut conn = self.session(OPERATION).await?;
        let standing = self.within(read_standing(&mut conn, &[subject])).await;
        Ok(settle(OPERATION, &mut conn, standing)?.remove(subject))
    }
}

fn statement<'q>(
    subject: &'q Subject,
    claim: &'q ClaimId,
    act: &'q Act,
    now: Timestamp,
) -> Query<'q, Postgres, PgArguments> {
    let of = |sql| {
        query(sql)
            .bind(subject.scope.as_str())
            .bind(subject.key.as_str())
            .bind(subject.key.is_parts())
            .bind(claim.registration_id.as_bytes().as_slice())
            .bind(i32::from(claim.attempt))
            .bind(claim.nonce.as_bytes().as_slice())
            .bind(PgTime(now))
    };
    match act {
        Act::Resolve(response) => of(sql::RESOLVE)
            .bind(response.as_ref().map(|response| ContentType::as_str(&response.content_type)))
            .bind(response.as_ref().map(|response| response.body.as_slice())),
        Act::Fail(reason) => of(sql::FAIL).bind(reason.as_ref().map(FailReason::as_str)),
        Act::Renew { lease_seconds } => of(sql::RENEW).bind(PgTime(now.plus_seconds(*lease_seconds))),
    }
}

/// The live rows of keys, whatever their windows.
pub(super) async fn read_standing(
    conn: &mut PgConnection,
    subjects: &[&Subject],
) -> Result<HashMap<Subject, Record>, sqlx::Error> {
    let scopes: Vec<&str> = subjects.iter().map(|subject| subject.scope.as_str()).collect();
    let keys: Vec<&str> = subjects.iter().map(|subject| subject.key.as_str()).collect();
    let parts: Vec<bool> = subjects.iter().map(|subject| subject.key.is_parts()).collect();
    let rows = query(sql::STANDING).bind(&scopes).bind(&keys).bind(&parts).fetch_all(conn).await?;
    Ok(claim_rows(&rows)?.into_iter().map(|claim| (claim.subject, claim.record)).collect())
}
