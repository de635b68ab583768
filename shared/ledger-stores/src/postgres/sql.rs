//! The statements. Fragments are macros, so that each statement stays one literal: sqlx takes no other text.
//!
//! `excluded` is the row that came, `t` the row that stands.

/// The columns of a plain first fact, which both tables share, in the order of [`super::row::Columns`].
macro_rules! columns {
    () => {
        "scope, key, key_is_parts, payload_sha256, source_service, first_seen_at, last_seen_at, retry_count, \
         registration_id, nonce, window_ends_at, state, attempt, won_at, lease_ends_at, drift_count, \
         drift_last_sha256, drift_last_at, response_content_type"
    };
}

/// Their types, as arrays: parameters 1 to 19.
macro_rules! arrays {
    () => {
        "$1::text[], $2::text[], $3::boolean[], $4::bytea[], $5::text[], $6::timestamptz[], $7::timestamptz[], \
         $8::bigint[], $9::bytea[], $10::bytea[], $11::timestamptz[], $12::text[], $13::integer[], \
         $14::timestamptz[], $15::timestamptz[], $16::bigint[], $17::bytea[], $18::timestamptz[], $19::text[]"
    };
}

/// All columns that both tables share: those of [`columns!`], and what only claims have.
macro_rules! all_columns {
    () => {
        concat!(columns!(), ", attempt_source_service, ended_at, fail_reason")
    };
}

/// Their types, as arrays: parameters 1 to 22.
macro_rules! all_arrays {
    () => {
        concat!(arrays!(), ", $20::text[], $21::timestamptz[], $22::text[]")
    };
}

/// `Record::rank` of a row. `None` is the least, as in Rust; a reason is never empty. (`dedup_register` of migration 0004 knows
/// RESOLVED only as final. It merges into history what stands in `dedup_claim`, which this has merged before.)
macro_rules! rank {
    ($row:literal) => {
        concat!(
            "(",
            $row,
            ".state = 'RESOLVED', ",
            $row,
            ".state = 'REGISTERED', ",
            $row,
            ".attempt, ",
            "array_position(ARRAY['REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED'], ",
            $row,
            ".state), ",
            $row,
            ".won_at, ",
            $row,
            ".nonce, coalesce(",
            $row,
            ".lease_ends_at, '-infinity'), coalesce(",
            $row,
            ".ended_at, '-infinity'), coalesce(",
            $row,
            ".fail_reason, ''), coalesce(",
            $row,
            ".attempt_source_service, ''))"
        )
    };
}

/// Whether the drift that came is the later one.
macro_rules! later_drift {
    () => {
        "(excluded.drift_last_at IS NOT NULL AND (t.drift_last_at IS NULL \
         OR (excluded.drift_last_at, excluded.drift_last_sha256) > (t.drift_last_at, t.drift_last_sha256)))"
    };
}

/// `Record::merge` and `Trail::merge` of history rows: both are of one registration.
macro_rules! merge_history {
    () => {
        concat!(
            "ON CONFLICT (scope, key, key_is_parts, first_seen_at, registration_id) DO UPDATE SET \
             (state, attempt, nonce, won_at, lease_ends_at, attempt_source_service, ended_at, fail_reason, attempts, \
              last_seen_at, window_ends_at, retry_count, source_service, drift_count, drift_last_sha256, drift_last_at, \
              response_content_type, response_sha256, response_length) = (SELECT \
              CASE WHEN f.better THEN excluded.state ELSE t.state END, \
              CASE WHEN f.better THEN excluded.attempt ELSE t.attempt END, \
              CASE WHEN f.better THEN excluded.nonce ELSE t.nonce END, \
              CASE WHEN f.better THEN excluded.won_at ELSE t.won_at END, \
              CASE WHEN f.better THEN excluded.lease_ends_at ELSE t.lease_ends_at END, \
              CASE WHEN f.better THEN excluded.attempt_source_service ELSE t.attempt_source_service END, \
              CASE WHEN f.better THEN excluded.ended_at ELSE t.ended_at END, \
              CASE WHEN f.better THEN excluded.fail_reason ELSE t.fail_reason END, \
              CASE WHEN excluded.attempts IS NULL THEN t.attempts \
                   ELSE dedup_merge_attempts(t.attempts, excluded.attempts) END, \
              greatest(t.last_seen_at, excluded.last_seen_at), \
              greatest(t.window_ends_at, excluded.window_ends_at), \
              greatest(t.retry_count, excluded.retry_count), \
              coalesce(t.source_service, excluded.source_service), \
              greatest(t.drift_count, excluded.drift_count), \
              CASE WHEN f.later_drift THEN excluded.drift_last_sha256 ELSE t.drift_last_sha256 END, \
              CASE WHEN f.later_drift THEN excluded.drift_last_at ELSE t.drift_last_at END, \
              coalesce(t.response_content_type, excluded.response_content_type), \
              coalesce(t.response_sha256, excluded.response_sha256), \
              coalesce(t.response_length, excluded.response_length) \
              FROM (SELECT ",
            rank!("excluded"),
            " > ",
            rank!("t"),
            " AS better, ",
            later_drift!(),
            " AS later_drift) f)"
        )
    };
}

mod claims;
mod live;
mod persist;

pub(super) use claims::{FAIL, REGISTER, RENEW, RESOLVE, SIGHT, STANDING};
pub(super) use live::{NEWEST_BEFORE, NEWEST_LIVE, PURGE};
pub(super) use persist::{INSERT_CLAIMS, INSERT_HISTORY, LINK, PERSIST_CLAIMS, PERSIST_HISTORY};

pub(super) const ENSURE_MONTH: &str = "SELECT dedup_ensure_month($1, $2)";

/// Parameters 4 and 5 bound the first sighting, so that only their months are read; 6 is the id below which rows of the
/// very last millisecond must be (the page's end), `NULL` for all of them.
pub(super) const BY_KEY: &str = "SELECT *, attempts::text AS trail FROM dedup_ledger \
     WHERE scope = $1 AND key = $2 AND key_is_parts = $3 AND first_seen_at >= $4 AND first_seen_at <= $5 \
       AND ($6::bytea IS NULL OR first_seen_at < $5 OR registration_id < $6) \
     ORDER BY first_seen_at DESC, registration_id DESC LIMIT $7";

/// As [`BY_KEY`].
pub(super) const BY_HASH: &str = "SELECT *, attempts::text AS trail FROM dedup_ledger \
     WHERE payload_sha256 = $1 AND split_part(scope, ':', 1) = $2 AND first_seen_at >= $3 AND first_seen_at <= $4 \
       AND ($5::bytea IS NULL OR first_seen_at < $4 OR registration_id < $5) \
     ORDER BY first_seen_at DESC, registration_id DESC LIMIT $6";

pub(super) const NOTE_DRAINED: &str = "INSERT INTO dedup_watermark AS t (drained_until) VALUES ($1) \
     ON CONFLICT (one_row) DO UPDATE SET drained_until = greatest(t.drained_until, excluded.drained_until)";

pub(super) const DRAINED_UNTIL: &str = "SELECT drained_until FROM dedup_watermark";

pub(super) const TIME: &str = "SELECT clock_timestamp()";
