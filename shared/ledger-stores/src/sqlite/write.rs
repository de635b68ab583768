//! Writing, inside a transaction that holds the write lock.

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{ActedCold, Registered};
use ledger_domain::transition::{self, Acted};
use ledger_domain::{Attempt, Record, State, Subject, TakeOver, Timestamp, Trail};
use sha2::{Digest as _, Sha256};
use sqlx::SqliteConnection;

use super::row::{bind_row, bind_subject, claim_row, record as read_record, trail as read_trail};
use crate::cold::{Coalesced, Told, WINDOW_MAX_MS, is_own, stored_trail};

/// The registering step, as PostgreSQL's statement does it.
pub(super) async fn register(
    conn: &mut SqliteConnection,
    subject: &Subject,
    wanted: &Record,
    won_after: Timestamp,
) -> Result<Registered, sqlx::Error> {
    let now = wanted.first_seen_at;
    let Some(standing) = read_claim(conn, subject).await?.filter(|standing| !standing.is_over(now)) else {
        write(conn, subject, wanted).await?;
        return Ok(Registered::Ours(Box::new(wanted.clone())));
    };
    if is_own(&standing, wanted, won_after) {
        return Ok(Registered::Ours(Box::new(standing)));
    }
    if is_open(&standing, now) {
        let taken = take_over(&standing, wanted);
        write(conn, subject, &taken).await?;
        return Ok(Registered::Ours(Box::new(taken)));
    }
    count(conn, subject, standing, wanted).await
}

/// Counts a sighting on the registration that stands in its window, unless it is this check's own.
pub(super) async fn sight_standing(
    conn: &mut SqliteConnection,
    subject: &Subject,
    sighted: &Record,
    won_after: Timestamp,
) -> Result<Option<Registered>, sqlx::Error> {
    let now = sighted.first_seen_at;
    let Some(standing) = read_claim(conn, subject).await?.filter(|standing| !standing.is_over(now)) else {
        return Ok(None);
    };
    if is_own(&standing, sighted, won_after) {
        return Ok(Some(Registered::Ours(Box::new(standing))));
    }
    count(conn, subject, standing, sighted).await.map(Some)
}

async fn count(
    conn: &mut SqliteConnection,
    subject: &Subject,
    mut standing: Record,
    sighted: &Record,
) -> Result<Registered, sqlx::Error> {
    standing.sight(sighted.first_seen_at, &sighted.payload_hash);
    write(conn, subject, &standing).await?;
    Ok(Registered::Theirs(Box::new(standing)))
}

/// Whether the next check may take a claim over: it failed, or its lease is over.
fn is_open(standing: &Record, now: Timestamp) -> bool {
    match standing.state {
        State::Failed => true,
        State::InProgress => !standing.is_leased(now),
        State::Pending | State::Registered | State::Resolved => false,
    }
}

fn take_over(standing: &Record, wanted: &Record) -> Record {
    let window_ends_at = standing.window_ends_at;
    let take_over = TakeOver {
        deadline: window_ends_at,
        attempt: standing.next_attempt(),
        nonce: wanted.nonce,
        won_at: wanted.won_at,
        lease_ends_at: wanted.lease_ends_at.map(|lease| lease.min(window_ends_at)),
    };
    standing.taken_over(&take_over, &wanted.payload_hash, wanted.source_service.as_ref())
}

/// An act of a claim's holder, by the domain's own rules, durable when the transaction is.
pub(super) async fn act(
    conn: &mut SqliteConnection,
    subject: &Subject,
    claim: &ClaimId,
    act: &Act,
    now: Timestamp,
) -> Result<ActedCold, sqlx::Error> {
    let Some(standing) = read_claim(conn, subject).await? else { return Ok(ActedCold::Unchanged(None)) };
    match transition::act(&standing, claim, act, now) {
        Acted::Changed(changed) => {
            let done = Record { undurable: false, ..*changed };
            write(conn, subject, &done).await?;
            Ok(ActedCold::Done(Box::new(done)))
        }
        Acted::Stands | Acted::Pending | Acted::Refused(_) => Ok(ActedCold::Unchanged(Some(Box::new(standing)))),
    }
}

/// Writes what now stands: the claim, and merged into history with its attempt. The attempt before it is in history already,
/// which has every row that `dedup_claim` ever had.
async fn write(conn: &mut SqliteConnection, subject: &Subject, record: &Record) -> Result<(), sqlx::Error> {
    write_claim(conn, subject, record).await?;
    merge_history(conn, subject, record, &Trail::of(Attempt::of(record))).await.map(drop)
}

/// Merges one key's registrations into both tables. Gives the live row, and how many false NEWs were found.
pub(super) async fn persist(conn: &mut SqliteConnection, key: &Coalesced<'_>) -> Result<(Record, u64), sqlx::Error> {
    let mut live = read_claim(conn, key.subject).await?;
    let mut false_new = 0;
    for Told { record, trail } in &key.registrations {
        match &mut live {
            Some(standing) if standing.registration_id == record.registration_id => standing.merge(record),
            Some(standing) if standing.standing() > record.standing() => {}
            Some(_) | None => live = Some(record.clone()),
        }
        let merged = merge_history(conn, key.subject, record, trail).await?;
        false_new += link(conn, key.subject, &merged).await?;
    }
    let live = live.ok_or(sqlx::Error::RowNotFound)?;
    write_claim(conn, key.subject, &live).await?;
    Ok((live, false_new))
}

/// The live row of a key, whatever its window.
pub(super) async fn read_claim(conn: &mut SqliteConnection, subject: &Subject) -> Result<Option<Record>, sqlx::Error> {
    let read = sqlx::query("SELECT * FROM dedup_claim WHERE scope = ?1 AND key = ?2 AND key_is_parts = ?3");
    let row = bind_subject(read, subject).fetch_optional(conn).await?;
    row.map(|row| claim_row(&row).map(|claim| claim.record)).transpose()
}

async fn write_claim(conn: &mut SqliteConnection, subject: &Subject, record: &Record) -> Result<(), sqlx::Error> {
    let write = sqlx::query(
        "INSERT OR REPLACE INTO dedup_claim (scope, key, key_is_parts, payload_sha256, source_service, first_seen_at, \
         last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at, lease_ends_at, \
         drift_count, drift_last_sha256, drift_last_at, response_content_type, attempt_source_service, ended_at, \
         fail_reason, response_body) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, \
         ?23)",
    );
    let body = record.response.as_ref().map(|response| response.body.clone());
    bind_row(write, subject, record).bind(body).execute(conn).await.map(drop)
}

/// Merges a record and its attempts into its row of history, and gives the row as it is now. It has no response: of that history keeps
/// what proves it.
async fn merge_history(
    conn: &mut SqliteConnection,
    subject: &Subject,
    record: &Record,
    trail: &Trail,
) -> Result<Record, sqlx::Error> {
    let read = sqlx::query(
        "SELECT * FROM dedup_ledger WHERE scope = ?1 AND key = ?2 AND key_is_parts = ?3 \
         AND first_seen_at = ?4 AND registration_id = ?5",
    );
    let row = bind_subject(read, subject)
        .bind(record.first_seen_at.as_millis())
        .bind(record.registration_id.as_bytes().to_vec())
        .fetch_optional(&mut *conn)
        .await?;
    let mut merged = row.as_ref().map_or_else(|| Ok(record.clone()), read_record)?;
    merged.merge(record);
    let mut attempts = row.as_ref().map_or_else(|| Ok(Trail::default()), read_trail)?;
    attempts.merge(trail);
    // The answer kept first stands, as in the domain's merge.
    let write = sqlx::query(
        "INSERT INTO dedup_ledger AS t (scope, key, key_is_parts, payload_sha256, source_service, first_seen_at, \
         last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at, lease_ends_at, \
         drift_count, drift_last_sha256, drift_last_at, response_content_type, attempt_source_service, ended_at, \
         fail_reason, response_sha256, response_length, attempts) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, \
         ?23, ?24, ?25) \
         ON CONFLICT (scope, key, key_is_parts, first_seen_at, registration_id) DO UPDATE SET \
         source_service = excluded.source_service, last_seen_at = excluded.last_seen_at, \
         retry_count = excluded.retry_count, nonce = excluded.nonce, window_ends_at = excluded.window_ends_at, \
         state = excluded.state, attempt = excluded.attempt, won_at = excluded.won_at, \
         lease_ends_at = excluded.lease_ends_at, attempt_source_service = excluded.attempt_source_service, \
         ended_at = excluded.ended_at, fail_reason = excluded.fail_reason, attempts = excluded.attempts, drift_count = excluded.drift_count, \
         drift_last_sha256 = excluded.drift_last_sha256, drift_last_at = excluded.drift_last_at, \
         response_content_type = coalesce(t.response_content_type, excluded.response_content_type), \
         response_sha256 = coalesce(t.response_sha256, excluded.response_sha256), \
         response_length = coalesce(t.response_length, excluded.response_length)",
    );
    let body = merged.response.as_ref().map(|response| response.body.as_slice());
    bind_row(write, subject, &merged)
        .bind(body.map(|body| Sha256::digest(body).to_vec()))
        .bind(body.map(|body| i64::try_from(body.len()).unwrap_or(i64::MAX)))
        .bind(stored_trail(&attempts))
        .execute(conn)
        .await?;
    Ok(merged)
}

/// Links the false NEWs that `written` makes with its key's other registrations, each later row to the least earlier one;
/// counts those that had no link before. A window is at most 366 days long: no row from before that can overlap.
async fn link(conn: &mut SqliteConnection, subject: &Subject, written: &Record) -> Result<u64, sqlx::Error> {
    let overlapping = sqlx::query_as(
        "SELECT first_seen_at, registration_id FROM dedup_ledger \
         WHERE scope = ?1 AND key = ?2 AND key_is_parts = ?3 \
         AND first_seen_at >= ?4 AND first_seen_at < ?5 AND window_ends_at > ?6 \
         AND registration_id <> ?7 AND nonce <> ?8 ORDER BY first_seen_at, registration_id",
    );
    let this: Place = (written.first_seen_at.as_millis(), written.registration_id.as_bytes().to_vec());
    let others: Vec<Place> = overlapping
        .bind(subject.scope.as_str())
        .bind(subject.key.as_str())
        .bind(subject.key.is_parts())
        .bind(this.0.saturating_sub(WINDOW_MAX_MS))
        .bind(written.window_ends_at.as_millis())
        .bind(this.0)
        .bind(&this.1)
        .bind(written.nonce.as_bytes().as_slice())
        .fetch_all(&mut *conn)
        .await?;
    let mut newly = 0;
    if let Some(least) = others.first().filter(|least| **least < this) {
        newly += set_link(conn, subject, &this, least).await?;
    }
    for later in others.iter().filter(|other| **other > this) {
        newly += set_link(conn, subject, later, &this).await?;
    }
    Ok(newly)
}

/// A registration's place among its key's, in [`Record::standing`]'s order: first sighting and id.
type Place = (i64, Vec<u8>);

/// Links a row to an earlier one, unless it has a link to one that is earlier still. 1 where it had none.
async fn set_link(
    conn: &mut SqliteConnection,
    subject: &Subject,
    row: &Place,
    earlier: &Place,
) -> Result<u64, sqlx::Error> {
    let first = sqlx::query(
        "UPDATE dedup_ledger SET false_new_of_first_seen_at = ?6, false_new_of = ?7 \
         WHERE scope = ?1 AND key = ?2 AND key_is_parts = ?3 AND first_seen_at = ?4 AND registration_id = ?5 \
         AND false_new_of IS NULL",
    );
    let better = sqlx::query(
        "UPDATE dedup_ledger SET false_new_of_first_seen_at = ?6, false_new_of = ?7 \
         WHERE scope = ?1 AND key = ?2 AND key_is_parts = ?3 AND first_seen_at = ?4 AND registration_id = ?5 \
         AND (?6, ?7) < (false_new_of_first_seen_at, false_new_of)",
    );
    let mut newly = 0;
    for (statement, counts) in [(first, true), (better, false)] {
        let statement = bind_subject(statement, subject).bind(row.0).bind(row.1.clone());
        let done = statement.bind(earlier.0).bind(earlier.1.clone()).execute(&mut *conn).await?;
        newly += if counts { done.rows_affected() } else { 0 };
    }
    Ok(newly)
}
