//! Facts into both tables.

/// Writes rows into `dedup_claim` where none of their keys stands there. Parameters 1 to 19 are the columns.
pub(in crate::postgres) const INSERT_CLAIMS: &str =
    concat!("INSERT INTO dedup_claim (", columns!(), ") SELECT * FROM unnest(", arrays!(), ")");

/// As [`INSERT_CLAIMS`], into `dedup_ledger`.
pub(in crate::postgres) const INSERT_HISTORY: &str =
    concat!("INSERT INTO dedup_ledger (", columns!(), ") SELECT * FROM unnest(", arrays!(), ")");

/// Merges a batch into `dedup_claim`: one row per key, in the order of the keys. Parameters 1 to 22 are the columns, 23 the
/// responses' bodies, 24 the latest window end of the key's other registrations in the batch. Returns each key's live row.
pub(in crate::postgres) const PERSIST_CLAIMS: &str = concat!(
    "INSERT INTO dedup_claim AS t (",
    all_columns!(),
    ", response_body, others_until) \
     SELECT * FROM unnest(",
    all_arrays!(),
    ", $23::bytea[], $24::timestamptz[]) \
     ON CONFLICT (scope, key, key_is_parts) DO UPDATE SET \
     (payload_sha256, source_service, first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, \
      state, attempt, won_at, lease_ends_at, attempt_source_service, ended_at, fail_reason, \
      drift_count, drift_last_sha256, drift_last_at, response_content_type, response_body, others_until) = (SELECT \
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
      CASE WHEN f.taken THEN excluded.attempt_source_service ELSE t.attempt_source_service END, \
      CASE WHEN f.taken THEN excluded.ended_at ELSE t.ended_at END, \
      CASE WHEN f.taken THEN excluded.fail_reason ELSE t.fail_reason END, \
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

/// Merges a batch into `dedup_ledger`. Parameters 1 to 22 are the columns, 23 and 24 the responses' hashes and lengths, 25
/// the trails.
pub(in crate::postgres) const PERSIST_HISTORY: &str = concat!(
    "INSERT INTO dedup_ledger AS t (",
    all_columns!(),
    ", response_sha256, response_length, attempts) \
     SELECT * FROM unnest(",
    all_arrays!(),
    ", $23::bytea[], $24::integer[], $25::text[]::jsonb[]) ",
    merge_history!()
);

/// Links the false NEWs that the registrations given make with their keys' other ones: each later row to the least earlier
/// one whose window it overlaps under another nonce. Parameters 1 to 5 are the registrations. Returns, per row linked,
/// whether it had no link before.
///
/// The writers of one key follow each other (each holds the claim's row), so that the later one sees all. A window is at
/// most 366 days long: no row from before that can overlap.
pub(in crate::postgres) const LINK: &str = "\
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
