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

/// Whether the row that stands is this check's own: `cold::is_own`. Expressions of the registration wanted, its nonce, the
/// time of its win, now, and the time after which a check with its nonce must have won.
macro_rules! own {
    ($registration_id:literal, $nonce:literal, $won_at:literal, $now:literal, $won_after:literal) => {
        concat!(
            "(t.nonce = ",
            $nonce,
            " AND (s.very_same OR t.won_at > ",
            $won_after,
            ") AND (t.state = 'REGISTERED' OR (t.state = 'IN_PROGRESS' AND (s.very_same OR t.lease_ends_at > ",
            $now,
            ")))) IS TRUE AS own FROM (SELECT t.registration_id = ",
            $registration_id,
            " OR (t.attempt > 1 AND t.won_at = ",
            $won_at,
            ") AS very_same) s"
        )
    };
}

/// Registers rows of distinct keys, each so: the claim is inserted, replaced where its window is over, left alone where this
/// check won it, taken over where it failed or its lease is over, else counted on; history takes the row that then stands.
/// Parameters 1 to 22 are the columns, 23 is for how many milliseconds a check is given again what it won.
pub(in crate::postgres) const REGISTER: &str = concat!(
    "WITH claim AS (INSERT INTO dedup_claim AS t (",
    all_columns!(),
    ") \
     SELECT * FROM unnest(",
    all_arrays!(),
    ") \
     ON CONFLICT (scope, key, key_is_parts) DO UPDATE SET \
     (payload_sha256, source_service, first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, \
      state, attempt, won_at, lease_ends_at, attempt_source_service, ended_at, fail_reason, \
      drift_count, drift_last_sha256, drift_last_at, response_content_type, response_body, others_until) = (SELECT \
      CASE WHEN f.replaced THEN excluded.payload_sha256 ELSE t.payload_sha256 END, \
      CASE WHEN f.replaced THEN excluded.source_service ELSE t.source_service END, \
      CASE WHEN f.replaced THEN excluded.first_seen_at ELSE t.first_seen_at END, \
      CASE WHEN f.replaced THEN excluded.last_seen_at WHEN f.own THEN t.last_seen_at \
           ELSE greatest(t.last_seen_at, excluded.first_seen_at) END, \
      CASE WHEN f.replaced THEN excluded.retry_count WHEN f.own THEN t.retry_count \
           ELSE least(t.retry_count + 1, 4294967295) END, \
      CASE WHEN f.replaced THEN excluded.registration_id ELSE t.registration_id END, \
      CASE WHEN f.replaced OR f.taken THEN excluded.nonce ELSE t.nonce END, \
      CASE WHEN f.replaced THEN excluded.window_ends_at ELSE t.window_ends_at END, \
      CASE WHEN f.replaced THEN excluded.state \
           WHEN f.taken AND excluded.lease_ends_at IS NULL THEN 'REGISTERED' WHEN f.taken THEN 'IN_PROGRESS' \
           ELSE t.state END, \
      CASE WHEN f.replaced THEN excluded.attempt WHEN f.taken THEN least(t.attempt + 1, 65535) ELSE t.attempt END, \
      CASE WHEN f.replaced OR f.taken THEN excluded.won_at ELSE t.won_at END, \
      CASE WHEN f.replaced OR (f.taken AND excluded.lease_ends_at IS NULL) THEN excluded.lease_ends_at \
           WHEN f.taken THEN least(excluded.lease_ends_at, t.window_ends_at) ELSE t.lease_ends_at END, \
      CASE WHEN f.replaced THEN excluded.attempt_source_service WHEN f.taken THEN excluded.source_service \
           ELSE t.attempt_source_service END, \
      CASE WHEN f.replaced THEN excluded.ended_at WHEN f.taken THEN NULL ELSE t.ended_at END, \
      CASE WHEN f.replaced THEN excluded.fail_reason WHEN f.taken THEN NULL ELSE t.fail_reason END, \
      CASE WHEN f.replaced THEN excluded.drift_count WHEN f.drifted \
           THEN least(coalesce(t.drift_count, 0) + 1, 4294967295) ELSE t.drift_count END, \
      CASE WHEN f.replaced THEN excluded.drift_last_sha256 WHEN f.drifted AND f.later_drift \
           THEN excluded.payload_sha256 ELSE t.drift_last_sha256 END, \
      CASE WHEN f.replaced THEN excluded.drift_last_at WHEN f.drifted AND f.later_drift \
           THEN excluded.first_seen_at ELSE t.drift_last_at END, \
      CASE WHEN f.replaced OR f.taken THEN NULL ELSE t.response_content_type END, \
      CASE WHEN f.replaced OR f.taken THEN NULL ELSE t.response_body END, \
      CASE WHEN f.replaced THEN greatest(t.others_until, t.window_ends_at) ELSE t.others_until END \
      FROM (SELECT g.own, t.window_ends_at <= excluded.first_seen_at AS replaced, \
                   NOT g.own AND (t.state = 'FAILED' OR (t.state = 'IN_PROGRESS' \
                                  AND (t.lease_ends_at > excluded.first_seen_at) IS NOT TRUE)) AS taken, \
                   NOT g.own AND t.payload_sha256 <> excluded.payload_sha256 AS drifted, \
                   t.drift_last_at IS NULL OR (excluded.first_seen_at, excluded.payload_sha256) \
                                            > (t.drift_last_at, t.drift_last_sha256) AS later_drift \
            FROM (SELECT ",
    own!(
        "excluded.registration_id",
        "excluded.nonce",
        "excluded.won_at",
        "excluded.first_seen_at",
        "excluded.first_seen_at - $23 * interval '1 millisecond'"
    ),
    ") g) f) \
     RETURNING t.*), \
     ",
    history_of_claim!()
);

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
            FROM (SELECT ",
    own!("$4", "$5", "$6", "$7", "$7 - $9 * interval '1 millisecond'"),
    ") g) f) \
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
