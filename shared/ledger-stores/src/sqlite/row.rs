//! Between the domain's words and SQLite's values.

use ledger_domain::ports::{ClaimRow, HistoryRow};
use ledger_domain::{
    ContentType, Drift, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, SourceService, State,
    StoredResponse, Subject, Timestamp, Trail,
};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row, Sqlite};

use crate::cold::{column, damaged, ended, read_trail};

type SqliteQuery<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Binds a subject: parameters 1 to 3.
pub(super) fn bind_subject<'q>(query: SqliteQuery<'q>, subject: &Subject) -> SqliteQuery<'q> {
    query.bind(subject.scope.to_string()).bind(subject.key.to_string()).bind(subject.key.is_parts())
}

/// Binds a row's columns: parameters 1 to 22.
pub(super) fn bind_row<'q>(query: SqliteQuery<'q>, subject: &Subject, record: &Record) -> SqliteQuery<'q> {
    bind_subject(query, subject)
        .bind(record.payload_hash.as_bytes().to_vec())
        .bind(record.source_service.as_ref().map(ToString::to_string))
        .bind(record.first_seen_at.as_millis())
        .bind(record.last_seen_at.as_millis())
        .bind(record.retry_count)
        .bind(record.registration_id.as_bytes().to_vec())
        .bind(record.nonce.as_bytes().to_vec())
        .bind(record.window_ends_at.as_millis())
        .bind(record.state.as_str())
        .bind(record.attempt)
        .bind(record.won_at.as_millis())
        .bind(record.lease_ends_at.map(Timestamp::as_millis))
        .bind(record.drift.map(|drift| drift.count))
        .bind(record.drift.map(|drift| drift.last_hash.as_bytes().to_vec()))
        .bind(record.drift.map(|drift| drift.last_at.as_millis()))
        .bind(record.response.as_ref().map(|response| response.content_type.to_string()))
        .bind(record.attempt_source.as_ref().map(ToString::to_string))
        .bind(record.ended.as_ref().map(|ended| ended.at.as_millis()))
        .bind(record.ended.as_ref().and_then(|ended| ended.reason.as_ref().map(ToString::to_string)))
}

/// Reads a time.
pub(super) fn time(millis: i64) -> Result<Timestamp, sqlx::Error> {
    let at = Timestamp::from_millis(millis);
    if at.as_millis() == millis { Ok(at) } else { Err(damaged("time")) }
}

fn time_of(row: &SqliteRow, name: &'static str) -> Result<Timestamp, sqlx::Error> {
    time(row.try_get(name)?)
}

fn bytes<const N: usize>(row: &SqliteRow, name: &'static str) -> Result<[u8; N], sqlx::Error> {
    column(name, <[u8; N]>::try_from(row.try_get::<&[u8], _>(name)?))
}

fn subject(row: &SqliteRow) -> Result<Subject, sqlx::Error> {
    Ok(Subject {
        scope: column("scope", Scope::parse(row.try_get("scope")?, None))?,
        key: column("key", MessageKey::from_stored(row.try_get("key")?, row.try_get("key_is_parts")?))?,
    })
}

pub(super) fn record(row: &SqliteRow) -> Result<Record, sqlx::Error> {
    let drift = match row.try_get::<Option<u32>, _>("drift_count")? {
        None => None,
        Some(count) => Some(Drift {
            count,
            last_hash: PayloadHash::from_bytes(bytes(row, "drift_last_sha256")?),
            last_at: time_of(row, "drift_last_at")?,
        }),
    };
    let source_service: Option<&str> = row.try_get("source_service")?;
    let lease_ends_at: Option<i64> = row.try_get("lease_ends_at")?;
    let attempt_source: Option<&str> = row.try_get("attempt_source_service")?;
    let ended_at = row.try_get::<Option<i64>, _>("ended_at")?.map(time).transpose()?;
    Ok(Record {
        registration_id: RegistrationId::from_bytes(bytes(row, "registration_id")?),
        state: State::parse(row.try_get("state")?).ok_or_else(|| damaged("state"))?,
        attempt: row.try_get("attempt")?,
        nonce: Nonce::from_bytes(bytes(row, "nonce")?),
        won_at: time_of(row, "won_at")?,
        first_seen_at: time_of(row, "first_seen_at")?,
        last_seen_at: time_of(row, "last_seen_at")?,
        window_ends_at: time_of(row, "window_ends_at")?,
        payload_hash: PayloadHash::from_bytes(bytes(row, "payload_sha256")?),
        retry_count: row.try_get("retry_count")?,
        source_service: column("source_service", source_service.map(SourceService::parse).transpose())?,
        drift,
        lease_ends_at: lease_ends_at.map(time).transpose()?,
        response: None,
        attempt_source: column("attempt_source_service", attempt_source.map(SourceService::parse).transpose())?,
        ended: ended(ended_at, row.try_get("fail_reason")?)?,
        undurable: false,
        take_over: None,
    })
}

/// Reads a row of `dedup_claim`.
pub(super) fn claim_row(row: &SqliteRow) -> Result<ClaimRow, sqlx::Error> {
    let response = match row.try_get::<Option<&str>, _>("response_content_type")? {
        None => None,
        Some(text) => Some(StoredResponse {
            content_type: column("response_content_type", ContentType::parse(text))?,
            body: row.try_get("response_body")?,
        }),
    };
    Ok(ClaimRow { subject: subject(row)?, record: Record { response, ..record(row)? } })
}

/// Reads the trail of a row of `dedup_ledger`.
pub(super) fn trail(row: &SqliteRow) -> Result<Trail, sqlx::Error> {
    read_trail(row.try_get("attempts")?)
}

/// Reads a row of `dedup_ledger`.
pub(super) fn history_row(row: &SqliteRow) -> Result<HistoryRow, sqlx::Error> {
    let false_new_of = match row.try_get::<Option<&[u8]>, _>("false_new_of")? {
        None => None,
        Some(id) => Some(RegistrationId::from_bytes(column("false_new_of", id.try_into())?)),
    };
    Ok(HistoryRow { subject: subject(row)?, record: record(row)?, trail: trail(row)?, false_new_of })
}
