//! Facts into both tables, in one transaction.
//!
//! What looks like the first fact of a key is inserted as it is, the rest is merged: per table one statement each, and one
//! more where registrations may overlap. Where a first fact turns out not to be the first one (delivered again, or overtaken by
//! a repeat's), all is rolled back and all is merged. Merging costs the server half as much again, and most rows are first
//! facts; both ways give the same rows.

use std::collections::HashMap;

use ledger_domain::ports::{ClaimRow, Persisted, StoreError};
use ledger_domain::{Fact, Record, RegistrationId, State, Subject, Timestamp};
use sha2::{Digest as _, Sha256};
use sqlx::{Connection as _, PgConnection, Row as _};

use super::row::{Columns, PgTime, claim_rows};
use super::{ATTEMPTS, PostgresLedger, back_off, error, query, settle, sql};
use crate::cold::{Coalesced, Told, check_plausible, coalesce, stored_trail};

const OPERATION: &str = "persist facts";

impl PostgresLedger {
    pub(super) async fn persist_facts(&self, facts: &[Fact], now: Timestamp) -> Result<Persisted, StoreError> {
        if facts.is_empty() {
            return Ok(Persisted::default());
        }
        for fact in facts {
            check_plausible(OPERATION, fact.record.first_seen_at, now)?;
        }
        let batch = coalesce(facts);
        let mut conn = self.session(OPERATION).await?;
        let mut months_created = None;
        let mut attempt = 1;
        let mut first_facts = FirstFacts::Insert;
        loop {
            conn.begins();
            let written = self.within(write(&mut conn, &batch, first_facts)).await;
            conn.is_over();
            let error = match written {
                Ok((claims, false_new)) => {
                    let months_created = months_created.unwrap_or_default();
                    return Ok(Persisted { claims, false_new, months_created });
                }
                Err(error) => error,
            };
            if error::is_missing_month(&error) && months_created.is_none() {
                let at = facts.iter().map(|fact| fact.record.first_seen_at);
                let ensured = self.ensure_months(&mut conn, at, now).await;
                months_created = Some(settle(OPERATION, &mut conn, ensured)?);
            } else if error::is_present(&error) && first_facts == FirstFacts::Insert {
                first_facts = FirstFacts::Merge;
            } else if error::is_lost_race(&error) && attempt < ATTEMPTS {
                back_off(attempt).await;
                attempt += 1;
            } else {
                return settle(OPERATION, &mut conn, Err(error));
            }
        }
    }
}

/// One transaction. Read committed, whatever the database's default: each statement must see what the writer it waited for
/// has committed.
async fn write(
    conn: &mut PgConnection,
    batch: &[Coalesced<'_>],
    first_facts: FirstFacts,
) -> Result<(Vec<ClaimRow>, u64), sqlx::Error> {
    let (first, rest): (Vec<_>, Vec<_>) =
        batch.iter().partition(|key| first_facts == FirstFacts::Insert && only_first_fact(key).is_some());
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
    // Claims first: holding a key's claim, this transaction is the only writer of its history. Two runs of keys, each in
    // their order, may deadlock with another batch's; the loser is tried again.
    let (mut claims, mut suspects) = (Vec::new(), Vec::new());
    if !first.is_empty() {
        insert(&mut tx, sql::INSERT_CLAIMS, &first).await?;
        claims.extend(first.iter().filter_map(|key| {
            let record = only_first_fact(key)?.clone();
            Some(ClaimRow { subject: key.subject.clone(), record })
        }));
    }
    if !rest.is_empty() {
        let merged = write_claims(&mut tx, &rest).await?;
        claims.extend(merged.0);
        suspects = merged.1;
    }
    claims.sort_unstable_by(|a, b| a.subject.cmp(&b.subject));
    if !first.is_empty() {
        insert(&mut tx, sql::INSERT_HISTORY, &first).await?;
    }
    if !rest.is_empty() {
        write_history(&mut tx, &rest).await?;
    }
    let false_new = if suspects.is_empty() { 0 } else { link(&mut tx, &suspects).await? };
    tx.commit().await?;
    Ok((claims, false_new))
}

/// What is done with the facts that look like their keys' first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstFacts {
    /// Nothing stands under their keys: insert them.
    Insert,
    /// Something does: merge them like all others.
    Merge,
}

/// The record of a key of which the batch holds nothing but a plain registration as it was confirmed.
fn only_first_fact<'a>(key: &'a Coalesced<'_>) -> Option<&'a Record> {
    let [Told { record, trail }] = key.registrations.as_slice() else { return None };
    let is_first = record.state == State::Registered && record.attempt == 1 && record.retry_count == 0;
    let was_claimed = !trail.attempts().is_empty() || record.attempt_source.is_some() || record.ended.is_some();
    (is_first && !was_claimed && record.response.is_none()).then_some(record)
}

/// Inserts first facts.
async fn insert(conn: &mut PgConnection, statement: &'static str, first: &[&Coalesced<'_>]) -> Result<(), sqlx::Error> {
    let mut columns = Columns::default();
    for key in first {
        if let Some(record) = only_first_fact(key) {
            columns.push(key.subject, record);
        }
    }
    columns.bind(query(statement)).execute(conn).await?;
    Ok(())
}

/// A registration that may overlap another one of its key.
type Suspect<'a> = (&'a Subject, Timestamp, RegistrationId);

async fn write_claims<'a>(
    conn: &mut PgConnection,
    batch: &[&'a Coalesced<'a>],
) -> Result<(Vec<ClaimRow>, Vec<Suspect<'a>>), sqlx::Error> {
    let mut columns = Columns::default();
    let (mut bodies, mut others_until) = (Vec::new(), Vec::new());
    for key in batch {
        if let Some(Told { record: standing, .. }) = key.registrations.last() {
            columns.push_all(key.subject, standing);
            bodies.push(standing.response.as_ref().map(|response| response.body.as_slice()));
            others_until.push(key.others_until().map(PgTime));
        }
    }
    let statement = columns.bind_all(query(sql::PERSIST_CLAIMS)).bind(&bodies).bind(&others_until);
    let rows = statement.fetch_all(conn).await?;

    let keys: HashMap<&Subject, &Coalesced<'_>> = batch.iter().map(|key| (key.subject, *key)).collect();
    let claims = claim_rows(&rows)?;
    let mut suspects = Vec::new();
    for (row, claim) in rows.iter().zip(&claims) {
        let others_until = row.try_get::<Option<PgTime>, _>("others_until")?.map(|at| at.0);
        if let Some(key) = keys.get(&claim.subject)
            && may_overlap(&key.registrations, &claim.record, others_until)
        {
            let suspect = |Told { record, .. }: &Told| (key.subject, record.first_seen_at, record.registration_id);
            suspects.extend(key.registrations.iter().map(suspect));
        }
    }
    Ok((claims, suspects))
}

/// Whether some registration just written may overlap another one: it is not the only one of its batch, it is a late one, or
/// it stands while another's window was not over at its first sighting.
fn may_overlap(written: &[Told], standing: &Record, others_until: Option<Timestamp>) -> bool {
    let [Told { record: only, .. }] = written else { return true };
    only.registration_id != standing.registration_id || others_until.is_some_and(|until| until > standing.first_seen_at)
}

async fn write_history(conn: &mut PgConnection, batch: &[&Coalesced<'_>]) -> Result<(), sqlx::Error> {
    let mut columns = Columns::default();
    let (mut hashes, mut lengths, mut trails) = (Vec::new(), Vec::new(), Vec::new());
    for key in batch {
        for Told { record, trail } in &key.registrations {
            columns.push_all(key.subject, record);
            trails.push(stored_trail(trail));
            let body = record.response.as_ref().map(|response| response.body.as_slice());
            hashes.push(body.map(|body| Sha256::digest(body).to_vec()));
            // A longer body than the column takes is refused with the claim's row already.
            lengths.push(body.map(|body| i32::try_from(body.len()).unwrap_or(i32::MAX)));
        }
    }
    let statement = columns.bind_all(query(sql::PERSIST_HISTORY)).bind(&hashes).bind(&lengths).bind(&trails);
    statement.execute(conn).await?;
    Ok(())
}

/// Links false NEWs, and counts those that had no link before.
async fn link(conn: &mut PgConnection, suspects: &[Suspect<'_>]) -> Result<u64, sqlx::Error> {
    let scopes: Vec<&str> = suspects.iter().map(|(subject, ..)| subject.scope.as_str()).collect();
    let keys: Vec<&str> = suspects.iter().map(|(subject, ..)| subject.key.as_str()).collect();
    let parts: Vec<bool> = suspects.iter().map(|(subject, ..)| subject.key.is_parts()).collect();
    let first_seen: Vec<PgTime> = suspects.iter().map(|(_, at, _)| PgTime(*at)).collect();
    let ids: Vec<&[u8]> = suspects.iter().map(|(.., id)| id.as_bytes().as_slice()).collect();
    let statement = query(sql::LINK).bind(&scopes).bind(&keys).bind(&parts).bind(&first_seen).bind(&ids);
    let rows = statement.fetch_all(conn).await?;
    let mut newly = 0;
    for row in rows {
        newly += u64::from(row.try_get::<bool, _>("newly")?);
    }
    Ok(newly)
}
