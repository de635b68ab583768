//! Claims: the registering statement, its sibling that only counts, and the acts of a claim's holder.

/// Merges the rows of `claim`, as they now stand, into history, and gives them back. The attempt that a row's own one follows
/// is in history already, which has every row that `dedup_claim` ever had; a first attempt in plain mode leaves no trail.
macro_rules! history_of_claim {
    () => {
        concat!(
            "history AS (INSERT INTO dedup_ledger AS t (",
            all_columns!(),
            ", response_sha256, response_length, attempts) SELECT ",
            all_columns!(),
            ", sha256(response_body), octet_length(response_body), \
              CASE WHEN attempt > 1 OR lease_ends_at IS NOT NULL THEN jsonb_build_array(jsonb_strip_nulls( \
                  jsonb_build_object( \
                      'attempt', attempt, 'nonce', encode(nonce, 'hex'), 'state', state, \
                      'startedAtMs', (extract(epoch FROM won_at) * 1000)::bigint, \
                      'leaseEndsAtMs', (extract(epoch FROM lease_ends_at) * 1000)::bigint, \
                      'sourceService', \
                      coalesce(attempt_source_service, CASE WHEN attempt = 1 THEN source_service END), \
                      'ended', CASE WHEN ended_at IS NOT NULL THEN jsonb_build_object( \
                          'atMs', (extract(epoch FROM ended_at) * 1000)::bigint, 'reason', fail_reason) END))) END \
              FROM claim ",
            merge_history!(),
            ") SELECT * FROM claim"
        )
    };
}

/// The registering statement: `dedup_register` of migration 0004, which says what it does. The database keeps its plan, which
/// takes ten times as long to make as to run. Parameters 1 to 22 are the columns, 23 is for how many milliseconds a check is
/// given again what it won.
pub(in crate::postgres) const REGISTER: &str =
    concat!("SELECT * FROM public.dedup_register(", all_arrays!(), ", $23::bigint)");

/// Counts a sighting on the registration that stands in its window; no row where none does. Parameters 1 to 3 are the key, 4
/// the registration, 5 the nonce, 6 the time of its win, 7 now, 8 the payload's hash, 9 for how many milliseconds a check is
/// given again what it won.
pub(in crate::postgres) const SIGHT: &str = concat!(
    "WITH claim AS (UPDATE dedup_claim AS t SET \
     (last_seen_at, retry_count, drift_count, drift_last_sha256, drift_last_at) = (SELECT \
      CASE WHEN f.own THEN t.last_seen_at ELSE greatest(t.last_seen_at, $7) END, \
      CASE WHEN f.own THEN t.retry_count ELSE least(t.retry_count + 1, 4294967295) END, \
      CASE WHEN f.drifted THEN least(coalesce(t.drift_count, 0) + 1, 4294967295) ELSE t.drift_count END, \
      CASE WHEN f.drifted AND f.later_drift THEN $8 ELSE t.drift_last_sha256 END, \
      CASE WHEN f.drifted AND f.later_drift THEN $7 ELSE t.drift_last_at END \
      FROM (SELECT g.own, NOT g.own AND t.payload_sha256 <> $8 AS drifted, \
                   t.drift_last_at IS NULL OR ($7, $8) > (t.drift_last_at, t.drift_last_sha256) AS later_drift \
            FROM (SELECT (t.nonce = $5 AND (s.very_same OR t.won_at > $7 - $9 * interval '1 millisecond') \
                          AND (t.state = 'REGISTERED' OR (t.state = 'IN_PROGRESS' \
                               AND (s.very_same OR t.lease_ends_at > $7)))) IS TRUE AS own \
                  FROM (SELECT t.registration_id = $4 OR (t.attempt > 1 AND t.won_at = $6) AS very_same) s) g) f) \
     WHERE scope = $1 AND key = $2 AND key_is_parts = $3 AND window_ends_at > $7 \
     RETURNING t.*), ",
    history_of_claim!()
);

/// An act of a claim's holder: what it sets. No row where that claim does not stand, or its window is over. Parameters 1 to 3
/// are the key, 4 to 6 the claim, 7 is now.
macro_rules! act {
    ($sets:literal) => {
        concat!(
            "WITH claim AS (UPDATE dedup_claim AS t SET ",
            $sets,
            " WHERE scope = $1 AND key = $2 AND key_is_parts = $3 \
               AND registration_id = $4 AND attempt = $5 AND nonce = $6 \
               AND state = 'IN_PROGRESS' AND window_ends_at > $7 RETURNING t.*), ",
            history_of_claim!()
        )
    };
}

/// It is done. Parameters 8 and 9 are the response's type and body.
pub(in crate::postgres) const RESOLVE: &str =
    act!("state = 'RESOLVED', ended_at = $7, fail_reason = NULL, response_content_type = $8, response_body = $9");

/// It failed. Parameter 8 is the reason.
pub(in crate::postgres) const FAIL: &str = act!("state = 'FAILED', ended_at = $7, fail_reason = $8");

/// It needs longer. Parameter 8 is the lease's end; `greatest` takes no notice of `NULL`.
pub(in crate::postgres) const RENEW: &str =
    act!("lease_ends_at = greatest(t.lease_ends_at, least($8, t.window_ends_at))");

/// The live rows of keys, whatever their windows. Parameters 1 to 3 are the keys.
pub(in crate::postgres) const STANDING: &str = "SELECT t.* \
     FROM unnest($1::text[], $2::text[], $3::boolean[]) AS w (scope, key, key_is_parts) \
     JOIN dedup_claim t USING (scope, key, key_is_parts)";
