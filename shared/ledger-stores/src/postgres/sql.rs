//! The statements. Fragments are macros, so that each statement stays one literal: sqlx takes no other text.
//!
//! `excluded` is the row that came, `t` the row that stands.

/// The columns that both tables share, in the order of [`super::row::Columns`].
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

/// `Record::rank` of a row.
macro_rules! rank {
    ($row:literal) => {
        concat!(
            "(",
            $row,
            ".state = 'RESOLVED', ",
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
            ".lease_ends_at, '-infinity'))"
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

/// `Record::merge` of history rows: both are of one registration.
macro_rules! merge_history {
    () => {
        concat!(
            "ON CONFLICT (scope, key, key_is_parts, first_seen_at, registration_id) DO UPDATE SET \
             (state, attempt, nonce, won_at, lease_ends_at, last_seen_at, window_ends_at, retry_count, source_service, \
              drift_count, drift_last_sha256, drift_last_at, \
              response_content_type, response_sha256, response_length) = (SELECT \
              CASE WHEN f.better THEN excluded.state ELSE t.state END, \
              CASE WHEN f.better THEN excluded.attempt ELSE t.attempt END, \
              CASE WHEN f.better THEN excluded.nonce ELSE t.nonce END, \
              CASE WHEN f.better THEN excluded.won_at ELSE t.won_at END, \
              CASE WHEN f.better THEN excluded.lease_ends_at ELSE t.lease_ends_at END, \
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
              FROM (SELECT ", rank!("excluded"), " > ", rank!("t"), " AS better, ", later_drift!(), " AS later_drift) f)"
        )
    };
}

/// Merges the row of `claim`, as it now stands, into history, and gives it back.
macro_rules! history_of_claim {
    () => {
        concat!(
            "history AS (INSERT INTO dedup_ledger AS t (",
            columns!(),
            ", response_sha256, response_length) SELECT ",
            columns!(),
            ", sha256(response_body), octet_length(response_body) FROM claim ",
            merge_history!(),
            ") SELECT * FROM claim"
        )
    };
}

/// Registers: the claim is inserted, replaced where its window is over, left alone where this check won it, else counted
/// on; history takes the row that then stands. Parameters 1 to 19 are the columns, 20 is the time after which a check
/// with this nonce must have won to be this check's own try.
///
/// A retry with the very record that was registered is its own at any time: it must not be counted on itself.
pub(super) const REGISTER: &str = concat!(
    "WITH claim AS (INSERT INTO dedup_claim AS t (",
    columns!(),
    ") \
     SELECT * FROM unnest(",
    arrays!(),
    ") \
     ON CONFLICT (scope, key, key_is_parts) DO UPDATE SET \
     (payload_sha256, source_service, first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, \
      state, attempt, won_at, lease_ends_at, drift_count, drift_last_sha256, drift_last_at, \
      response_content_type, response_body, others_until) = (SELECT \
      CASE WHEN f.replaced THEN excluded.payload_sha256 ELSE t.payload_sha256 END, \
      CASE WHEN f.replaced THEN excluded.source_service ELSE t.source_service END, \
      CASE WHEN f.replaced THEN excluded.first_seen_at ELSE t.first_seen_at END, \
      CASE WHEN f.replaced THEN excluded.last_seen_at WHEN f.own THEN t.last_seen_at \
           ELSE greatest(t.last_seen_at, excluded.first_seen_at) END, \
      CASE WHEN f.replaced THEN excluded.retry_count WHEN f.own THEN t.retry_count \
           ELSE least(t.retry_count + 1, 4294967295) END, \
      CASE WHEN f.replaced THEN excluded.registration_id ELSE t.registration_id END, \
      CASE WHEN f.replaced THEN excluded.nonce ELSE t.nonce END, \
      CASE WHEN f.replaced THEN excluded.window_ends_at ELSE t.window_ends_at END, \
      CASE WHEN f.replaced THEN excluded.state ELSE t.state END, \
      CASE WHEN f.replaced THEN excluded.attempt ELSE t.attempt END, \
      CASE WHEN f.replaced THEN excluded.won_at ELSE t.won_at END, \
      CASE WHEN f.replaced THEN excluded.lease_ends_at ELSE t.lease_ends_at END, \
      CASE WHEN f.replaced THEN excluded.drift_count WHEN f.drifted \
           THEN least(coalesce(t.drift_count, 0) + 1, 4294967295) ELSE t.drift_count END, \
      CASE WHEN f.replaced THEN excluded.drift_last_sha256 WHEN f.drifted AND f.later_drift \
           THEN excluded.payload_sha256 ELSE t.drift_last_sha256 END, \
      CASE WHEN f.replaced THEN excluded.drift_last_at WHEN f.drifted AND f.later_drift \
           THEN excluded.first_seen_at ELSE t.drift_last_at END, \
      CASE WHEN f.replaced THEN NULL ELSE t.response_content_type END, \
      CASE WHEN f.replaced THEN NULL ELSE t.response_body END, \
      CASE WHEN f.replaced THEN greatest(t.others_until, t.window_ends_at) ELSE t.others_until END \
      FROM (SELECT g.*, NOT g.own AND t.payload_sha256 <> excluded.payload_sha256 AS drifted, \
                   t.drift_last_at IS NULL OR (excluded.first_seen_at, excluded.payload_sha256) \
                                            > (t.drift_last_at, t.drift_last_sha256) AS later_drift \
            FROM (SELECT t.window_ends_at <= excluded.first_seen_at AS replaced, \
                         t.nonce = excluded.nonce \
                         AND (t.registration_id = excluded.registration_id OR t.won_at > $20) AS own) g) f) \
     RETURNING t.*), \
     ",
    history_of_claim!()
);

/// Counts a sighting on the registration that stands in its window; no row where none does. Parameters 1 to 3 are the key, 4
/// the nonce, 5 the time after which a check with it must have won to be this check's own, 6 now, 7 the payload's hash.
pub(super) const SIGHT: &str = concat!(
    "WITH claim AS (UPDATE dedup_claim AS t SET \
     (last_seen_at, retry_count, drift_count, drift_last_sha256, drift_last_at) = (SELECT \
      CASE WHEN f.own THEN t.last_seen_at ELSE greatest(t.last_seen_at, $6) END, \
      CASE WHEN f.own THEN t.retry_count ELSE least(t.retry_count + 1, 4294967295) END, \
      CASE WHEN f.drifted THEN least(coalesce(t.drift_count, 0) + 1, 4294967295) ELSE t.drift_count END, \
      CASE WHEN f.drifted AND f.later_drift THEN $7 ELSE t.drift_last_sha256 END, \
      CASE WHEN f.drifted AND f.later_drift THEN $6 ELSE t.drift_last_at END \
      FROM (SELECT g.own, NOT g.own AND t.payload_sha256 <> $7 AS drifted, \
                   t.drift_last_at IS NULL OR ($6, $7) > (t.drift_last_at, t.drift_last_sha256) AS later_drift \
            FROM (SELECT t.nonce = $4 AND t.won_at > $5 AS own) g) f) \
     WHERE scope = $1 AND key = $2 AND key_is_parts = $3 AND window_ends_at > $6 \
     RETURNING t.*), ",
    history_of_claim!()
);

/// Writes rows into `dedup_claim` where none of their keys stands there. Parameters 1 to 19 are the columns.
pub(super) const INSERT_CLAIMS: &str =
    concat!("INSERT INTO dedup_claim (", columns!(), ") SELECT * FROM unnest(", arrays!(), ")");

/// As [`INSERT_CLAIMS`], into `dedup_ledger`.
pub(super) const INSERT_HISTORY: &str =
    concat!("INSERT INTO dedup_ledger (", columns!(), ") SELECT * FROM unnest(", arrays!(), ")");

/// Merges a batch into `dedup_claim`: one row per key, in the order of the keys. Parameters 1 to 19 are the columns, 20 the
/// responses' bodies, 21 the latest window end of the key's other registrations in the batch. Returns each key's live row.
pub(super) const PERSIST_CLAIMS: &str = concat!(
    "INSERT INTO dedup_claim AS t (",
    columns!(),
    ", response_body, others_until) \
     SELECT * FROM unnest(",
    arrays!(),
    ", $20::bytea[], $21::timestamptz[]) \
     ON CONFLICT (scope, key, key_is_parts) DO UPDATE SET \
     (payload_sha256, source_service, first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, \
      state, attempt, won_at, lease_ends_at, drift_count, drift_last_sha256, drift_last_at, \
      response_content_type, response_body, others_until) = (SELECT \
      CASE WHEN f.newer THEN excluded.payload_sha256 ELSE t.payload_sha256 END, \
      CASE WHEN f.newer THEN excluded.source_service \
           WHEN f.same THEN coalesce(t.source_service, excluded.source_service) ELSE t.source_service END, \
      CASE WHEN f.newer THEN excluded.first_seen_at \
           WHEN f.same THEN least(t.first_seen_at, excluded.first_seen_at) ELSE t.first_seen_at END, \
      CASE WHEN f.newer THEN excluded.last_seen_at \
           WHEN f.same THEN greatest(t.last_seen_at, excluded.last_seen_at) ELSE t.last_seen_at END, \
      CASE WHEN f.newer THEN excluded.retry_count \
           WHEN f.same THEN greatest(t.retry_count, excluded.retry_count) ELSE t.retry_count END, \
      CASE WHEN f.newer THEN excluded.registration_id ELSE t.registration_id END, \
      CASE WHEN f.taken THEN excluded.nonce ELSE t.nonce END, \
      CASE WHEN f.newer THEN excluded.window_ends_at \
           WHEN f.same THEN greatest(t.window_ends_at, excluded.window_ends_at) ELSE t.window_ends_at END, \
      CASE WHEN f.taken THEN excluded.state ELSE t.state END, \
      CASE WHEN f.taken THEN excluded.attempt ELSE t.attempt END, \
      CASE WHEN f.taken THEN excluded.won_at ELSE t.won_at END, \
      CASE WHEN f.taken THEN excluded.lease_ends_at ELSE t.lease_ends_at END, \
      CASE WHEN f.newer THEN excluded.drift_count \
           WHEN f.same THEN greatest(t.drift_count, excluded.drift_count) ELSE t.drift_count END, \
      CASE WHEN f.newer OR (f.same AND f.later_drift) THEN excluded.drift_last_sha256 ELSE t.drift_last_sha256 END, \
      CASE WHEN f.newer OR (f.same AND f.later_drift) THEN excluded.drift_last_at ELSE t.drift_last_at END, \
      CASE WHEN f.newer THEN excluded.response_content_type \
           WHEN f.same THEN coalesce(t.response_content_type, excluded.response_content_type) \
           ELSE t.response_content_type END, \
      CASE WHEN f.newer THEN excluded.response_body \
           WHEN f.same THEN coalesce(t.response_body, excluded.response_body) ELSE t.response_body END, \
      greatest(t.others_until, excluded.others_until, \
               CASE WHEN f.newer THEN t.window_ends_at WHEN NOT f.same THEN excluded.window_ends_at END) \
      FROM (SELECT g.*, g.newer OR (g.same AND ",
    rank!("excluded"),
    " > ",
    rank!("t"),
    ") AS taken, ",
    later_drift!(),
    " AS later_drift \
            FROM (SELECT excluded.registration_id = t.registration_id AS same, \
                         excluded.registration_id <> t.registration_id \
                         AND (excluded.first_seen_at, excluded.registration_id) \
                           > (t.first_seen_at, t.registration_id) AS newer) g) f) \
     RETURNING t.*"
);

/// Merges a batch into `dedup_ledger`. Parameters 1 to 19 are the columns, 20 and 21 the responses' hashes and lengths.
pub(super) const PERSIST_HISTORY: &str = concat!(
    "INSERT INTO dedup_ledger AS t (",
    columns!(),
    ", response_sha256, response_length) \
     SELECT * FROM unnest(",
    arrays!(),
    ", $20::bytea[], $21::integer[]) ",
    merge_history!()
);

/// Links the false NEWs that the registrations given make with their keys' other ones: each later row to the least earlier
/// one whose window it overlaps under another nonce. Parameters 1 to 5 are the registrations. Returns, per row linked,
/// whether it had no link before.
///
/// The writers of one key follow each other (each holds the claim's row), so that the later one sees all. A window is at
/// most 366 days long: no row from before that can overlap.
pub(super) const LINK: &str = "\
    WITH written AS ( \
        SELECT r.* FROM unnest($1::text[], $2::text[], $3::boolean[], $4::timestamptz[], $5::bytea[]) \
                        AS w (scope, key, key_is_parts, first_seen_at, registration_id) \
        JOIN dedup_ledger r USING (scope, key, key_is_parts, first_seen_at, registration_id) \
    ), pairs AS ( \
        SELECT scope, key, key_is_parts, \
               CASE WHEN o_is_earlier THEN r.first_seen_at ELSE o.first_seen_at END AS first_seen_at, \
               CASE WHEN o_is_earlier THEN r.registration_id ELSE o.registration_id END AS registration_id, \
               CASE WHEN o_is_earlier THEN r.false_new_of ELSE o.false_new_of END IS NULL AS newly, \
               CASE WHEN o_is_earlier THEN o.first_seen_at ELSE r.first_seen_at END AS earlier_at, \
               CASE WHEN o_is_earlier THEN o.registration_id ELSE r.registration_id END AS earlier_id \
        FROM written r JOIN dedup_ledger o USING (scope, key, key_is_parts) \
        CROSS JOIN LATERAL (SELECT (o.first_seen_at, o.registration_id) < (r.first_seen_at, r.registration_id)) \
                   AS e (o_is_earlier) \
        WHERE o.first_seen_at >= r.first_seen_at - interval '366 days' AND o.first_seen_at < r.window_ends_at \
          AND r.first_seen_at < o.window_ends_at \
          AND o.registration_id <> r.registration_id AND o.nonce <> r.nonce \
    ), least_earlier AS ( \
        SELECT DISTINCT ON (scope, key, key_is_parts, first_seen_at, registration_id) * FROM pairs \
        ORDER BY scope, key, key_is_parts, first_seen_at, registration_id, earlier_at, earlier_id \
    ) \
    UPDATE dedup_ledger t SET false_new_of = l.earlier_id, false_new_of_first_seen_at = l.earlier_at \
    FROM least_earlier l \
    WHERE (t.scope, t.key, t.key_is_parts, t.first_seen_at, t.registration_id) \
        = (l.scope, l.key, l.key_is_parts, l.first_seen_at, l.registration_id) \
      AND (t.false_new_of IS NULL \
           OR (l.earlier_at, l.earlier_id) < (t.false_new_of_first_seen_at, t.false_new_of)) \
    RETURNING l.newly";

pub(super) const ENSURE_MONTH: &str = "SELECT dedup_ensure_month($1, $2)";

/// Live rows after a subject (parameters 2 to 4).
pub(super) const LIVE_AFTER: &str = "SELECT * FROM dedup_claim \
     WHERE window_ends_at > $1 AND (scope, key, key_is_parts) > ($2, $3, $4) \
     ORDER BY scope, key, key_is_parts LIMIT $5";

/// The first live rows.
pub(super) const LIVE_FIRST: &str =
    "SELECT * FROM dedup_claim WHERE window_ends_at > $1 ORDER BY scope, key, key_is_parts LIMIT $2";

/// Parameters 4 and 5 bound the first sighting, so that only their months are read; 6 is the id below which rows of the
/// very last millisecond must be (the page's end), `NULL` for all of them.
pub(super) const BY_KEY: &str = "SELECT * FROM dedup_ledger \
     WHERE scope = $1 AND key = $2 AND key_is_parts = $3 AND first_seen_at >= $4 AND first_seen_at <= $5 \
       AND ($6::bytea IS NULL OR first_seen_at < $5 OR registration_id < $6) \
     ORDER BY first_seen_at DESC, registration_id DESC LIMIT $7";

/// As [`BY_KEY`].
pub(super) const BY_HASH: &str = "SELECT * FROM dedup_ledger \
     WHERE payload_sha256 = $1 AND split_part(scope, ':', 1) = $2 AND first_seen_at >= $3 AND first_seen_at <= $4 \
       AND ($5::bytea IS NULL OR first_seen_at < $4 OR registration_id < $5) \
     ORDER BY first_seen_at DESC, registration_id DESC LIMIT $6";

pub(super) const NOTE_DRAINED: &str = "INSERT INTO dedup_watermark AS t (drained_until) VALUES ($1) \
     ON CONFLICT (one_row) DO UPDATE SET drained_until = greatest(t.drained_until, excluded.drained_until)";

pub(super) const DRAINED_UNTIL: &str = "SELECT drained_until FROM dedup_watermark";

pub(super) const TIME: &str = "SELECT clock_timestamp()";
