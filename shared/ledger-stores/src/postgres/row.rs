//! Between the domain's words and PostgreSQL's values.

use ledger_domain::ports::{ClaimRow, HistoryRow};
use ledger_domain::{
    ContentType, Drift, FailReason, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, SourceService,
    State, StoredResponse, Subject, Timestamp,
};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgHasArrayType, PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::query::Query;
use sqlx::{Column as _, Decode, Encode, Postgres, Row, Type};

use crate::cold::{column, damaged, ended, read_trail};

/// A `timestamptz`. On the wire it is microseconds since 2000-01-01T00:00:00Z, so milliseconds are exact at any year.
#[derive(Debug, Clone, Copy)]
pub(super) struct PgTime(pub(super) Timestamp);

/// 2000-01-01T00:00:00Z in milliseconds since 1970.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

impl Type<Postgres> for PgTime {
    fn type_info() -> PgTypeInfo {
        // `timestamptz` in pg_type.dat.
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for PgTime {
    fn array_type_info() -> PgTypeInfo {
        // `timestamptz[]` in pg_type.dat.
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for PgTime {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode((self.0.as_millis() - POSTGRES_EPOCH_MS) * 1_000, buf)
    }

    fn size_hint(&self) -> usize {
        size_of::<i64>()
    }
}

impl Decode<'_, Postgres> for PgTime {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                let micros = <i64 as Decode<'_, Postgres>>::decode(value)?;
                Ok(Self(Timestamp::from_millis(micros.div_euclid(1_000).saturating_add(POSTGRES_EPOCH_MS))))
            }
            PgValueFormat::Text => Err("a time in text form; every query here is a binary one".into()),
        }
    }
}

/// Columns of rows to write, one vector each: what `unnest` takes. The order is that of the SQL's column list.
#[derive(Default)]
pub(super) struct Columns<'a> {
    scope: Vec<&'a str>,
    key: Vec<&'a str>,
    key_is_parts: Vec<bool>,
    payload_sha256: Vec<&'a [u8]>,
    source_service: Vec<Option<&'a str>>,
    first_seen_at: Vec<PgTime>,
    last_seen_at: Vec<PgTime>,
    retry_count: Vec<i64>,
    registration_id: Vec<&'a [u8]>,
    nonce: Vec<&'a [u8]>,
    window_ends_at: Vec<PgTime>,
    state: Vec<&'a str>,
    attempt: Vec<i32>,
    won_at: Vec<PgTime>,
    lease_ends_at: Vec<Option<PgTime>>,
    drift_count: Vec<Option<i64>>,
    drift_last_sha256: Vec<Option<Vec<u8>>>,
    drift_last_at: Vec<Option<PgTime>>,
    response_content_type: Vec<Option<&'a str>>,
    attempt_source_service: Vec<Option<&'a str>>,
    ended_at: Vec<Option<PgTime>>,
    fail_reason: Vec<Option<&'a str>>,
}

type PgQuery<'q> = Query<'q, Postgres, PgArguments>;

impl<'a> Columns<'a> {
    /// Takes what a plain first fact has.
    pub(super) fn push(&mut self, subject: &'a Subject, record: &'a Record) {
        self.scope.push(subject.scope.as_str());
        self.key.push(subject.key.as_str());
        self.key_is_parts.push(subject.key.is_parts());
        self.payload_sha256.push(record.payload_hash.as_bytes());
        self.source_service.push(record.source_service.as_ref().map(SourceService::as_str));
        self.first_seen_at.push(PgTime(record.first_seen_at));
        self.last_seen_at.push(PgTime(record.last_seen_at));
        self.retry_count.push(record.retry_count.into());
        self.registration_id.push(record.registration_id.as_bytes());
        self.nonce.push(record.nonce.as_bytes());
        self.window_ends_at.push(PgTime(record.window_ends_at));
        self.state.push(record.state.as_str());
        self.attempt.push(record.attempt.into());
        self.won_at.push(PgTime(record.won_at));
        self.lease_ends_at.push(record.lease_ends_at.map(PgTime));
        self.drift_count.push(record.drift.map(|drift| drift.count.into()));
        self.drift_last_sha256.push(record.drift.map(|drift| drift.last_hash.as_bytes().to_vec()));
        self.drift_last_at.push(record.drift.map(|drift| PgTime(drift.last_at)));
        self.response_content_type.push(record.response.as_ref().map(|response| response.content_type.as_str()));
    }

    /// Takes the whole row.
    pub(super) fn push_all(&mut self, subject: &'a Subject, record: &'a Record) {
        self.push(subject, record);
        self.attempt_source_service.push(record.attempt_source.as_ref().map(SourceService::as_str));
        self.ended_at.push(record.ended.as_ref().map(|ended| PgTime(ended.at)));
        let reason = record.ended.as_ref().and_then(|ended| ended.reason.as_ref());
        self.fail_reason.push(reason.map(FailReason::as_str));
    }

    /// Binds what [`Columns::push`] took: parameters 1 to 19.
    pub(super) fn bind<'q>(&self, query: PgQuery<'q>) -> PgQuery<'q> {
        query
            .bind(&self.scope)
            .bind(&self.key)
            .bind(&self.key_is_parts)
            .bind(&self.payload_sha256)
            .bind(&self.source_service)
            .bind(&self.first_seen_at)
            .bind(&self.last_seen_at)
            .bind(&self.retry_count)
            .bind(&self.registration_id)
            .bind(&self.nonce)
            .bind(&self.window_ends_at)
            .bind(&self.state)
            .bind(&self.attempt)
            .bind(&self.won_at)
            .bind(&self.lease_ends_at)
            .bind(&self.drift_count)
            .bind(&self.drift_last_sha256)
            .bind(&self.drift_last_at)
            .bind(&self.response_content_type)
    }

    /// Binds what [`Columns::push_all`] took: parameters 1 to 22.
    pub(super) fn bind_all<'q>(&self, query: PgQuery<'q>) -> PgQuery<'q> {
        self.bind(query).bind(&self.attempt_source_service).bind(&self.ended_at).bind(&self.fail_reason)
    }
}

/// Where an answer's columns are: looked up once for all its rows, as a look-up by name for each value of each row costs as much
/// as reading the value.
macro_rules! ordinals {
    ($(#[$doc:meta])* $name:ident: $($column:ident),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name {
            $($column: usize),+
        }

        impl $name {
            fn of(row: &PgRow) -> Result<Self, sqlx::Error> {
                Ok(Self { $($column: row.try_column(stringify!($column))?.ordinal()),+ })
            }
        }
    };
}

ordinals! {
    /// Those of both tables.
    RowColumns: scope, key, key_is_parts, payload_sha256, source_service, first_seen_at, last_seen_at, retry_count,
    registration_id, nonce, window_ends_at, state, attempt, won_at, lease_ends_at, drift_count, drift_last_sha256,
    drift_last_at, response_content_type, attempt_source_service, ended_at, fail_reason
}

fn time(row: &PgRow, at: usize) -> Result<Timestamp, sqlx::Error> {
    Ok(row.try_get::<PgTime, _>(at)?.0)
}

fn bytes<const N: usize>(row: &PgRow, at: usize, name: &'static str) -> Result<[u8; N], sqlx::Error> {
    column(name, <[u8; N]>::try_from(row.try_get::<&[u8], _>(at)?))
}

fn subject(row: &PgRow, at: &RowColumns) -> Result<Subject, sqlx::Error> {
    Ok(Subject {
        scope: column("scope", Scope::parse(row.try_get(at.scope)?, None))?,
        key: column("key", MessageKey::from_stored(row.try_get(at.key)?, row.try_get(at.key_is_parts)?))?,
    })
}

fn record(row: &PgRow, at: &RowColumns) -> Result<Record, sqlx::Error> {
    let drift = match row.try_get::<Option<i64>, _>(at.drift_count)? {
        None => None,
        Some(count) => Some(Drift {
            count: column("drift_count", count.try_into())?,
            last_hash: PayloadHash::from_bytes(bytes(row, at.drift_last_sha256, "drift_last_sha256")?),
            last_at: time(row, at.drift_last_at)?,
        }),
    };
    let source_service: Option<&str> = row.try_get(at.source_service)?;
    let attempt_source: Option<&str> = row.try_get(at.attempt_source_service)?;
    let ended_at = row.try_get::<Option<PgTime>, _>(at.ended_at)?.map(|at| at.0);
    Ok(Record {
        registration_id: RegistrationId::from_bytes(bytes(row, at.registration_id, "registration_id")?),
        state: State::parse(row.try_get(at.state)?).ok_or_else(|| damaged("state"))?,
        attempt: column("attempt", row.try_get::<i32, _>(at.attempt)?.try_into())?,
        nonce: Nonce::from_bytes(bytes(row, at.nonce, "nonce")?),
        won_at: time(row, at.won_at)?,
        first_seen_at: time(row, at.first_seen_at)?,
        last_seen_at: time(row, at.last_seen_at)?,
        window_ends_at: time(row, at.window_ends_at)?,
        payload_hash: PayloadHash::from_bytes(bytes(row, at.payload_sha256, "payload_sha256")?),
        retry_count: column("retry_count", row.try_get::<i64, _>(at.retry_count)?.try_into())?,
        source_service: column("source_service", source_service.map(SourceService::parse).transpose())?,
        drift,
        lease_ends_at: row.try_get::<Option<PgTime>, _>(at.lease_ends_at)?.map(|at| at.0),
        response: None,
        attempt_source: column("attempt_source_service", attempt_source.map(SourceService::parse).transpose())?,
        ended: ended(ended_at, row.try_get(at.fail_reason)?)?,
        undurable: false,
        take_over: None,
    })
}

/// Reads rows of `dedup_claim`, one answer's.
pub(super) fn claim_rows(rows: &[PgRow]) -> Result<Vec<ClaimRow>, sqlx::Error> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let at = RowColumns::of(first)?;
    let read = |row: &PgRow| {
        let response = match row.try_get::<Option<&str>, _>(at.response_content_type)? {
            None => None,
            Some(text) => Some(StoredResponse {
                content_type: column("response_content_type", ContentType::parse(text))?,
                body: row.try_get("response_body")?,
            }),
        };
        Ok(ClaimRow { subject: subject(row, &at)?, record: Record { response, ..record(row, &at)? } })
    };
    rows.iter().map(read).collect()
}

/// Reads a row of `dedup_claim`.
pub(super) fn claim_row(row: &PgRow) -> Result<ClaimRow, sqlx::Error> {
    claim_rows(std::slice::from_ref(row))?.pop().ok_or(sqlx::Error::RowNotFound)
}

/// Reads rows of `dedup_ledger`, one answer's.
pub(super) fn history_rows(rows: &[PgRow]) -> Result<Vec<HistoryRow>, sqlx::Error> {
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let at = RowColumns::of(first)?;
    let read = |row: &PgRow| {
        let false_new_of = match row.try_get::<Option<&[u8]>, _>("false_new_of")? {
            None => None,
            Some(id) => Some(RegistrationId::from_bytes(column("false_new_of", id.try_into())?)),
        };
        let trail = read_trail(row.try_get("trail")?)?;
        Ok(HistoryRow { subject: subject(row, &at)?, record: record(row, &at)?, trail, false_new_of })
    };
    rows.iter().map(read).collect()
}
