//! Live rows: newest first, and the purge.

/// Live rows first seen from parameter 1 on, older than a place (2 and 3), whose window is not over at 4, at most 5 of them:
/// `dedup_newest_live` of migration 0005, which says what it does and why it is a function.
pub(in crate::postgres) const NEWEST_LIVE: &str = "SELECT * FROM public.dedup_newest_live($1, $2, $3, $4, $5)";

/// When the newest row older than a place was first seen, whatever its window. Parameters 1 to 3 as for [`NEWEST_LIVE`].
pub(in crate::postgres) const NEWEST_BEFORE: &str = "SELECT first_seen_at FROM dedup_claim \
     WHERE first_seen_at >= $1 AND (first_seen_at, registration_id) < ($2, $3) \
     ORDER BY first_seen_at DESC, registration_id DESC LIMIT 1";

/// Removes rows of keys all of whose windows ended before parameter 1, what ended first goes first, at most 2 of them. Whoever
/// holds a row is about to change it: it is passed over. The condition stands twice, so that a row is judged as it is when it
/// goes. The keys go through arrays, as then the planner looks each up: joined as rows, it would read the whole table.
pub(in crate::postgres) const PURGE: &str = "WITH ended AS ( \
         SELECT scope, key, key_is_parts FROM dedup_claim WHERE greatest(window_ends_at, others_until) < $1 \
         ORDER BY greatest(window_ends_at, others_until) LIMIT $2 FOR UPDATE SKIP LOCKED) \
     DELETE FROM dedup_claim t \
     USING unnest(ARRAY(SELECT scope FROM ended), ARRAY(SELECT key FROM ended), ARRAY(SELECT key_is_parts FROM ended)) \
           AS e (scope, key, key_is_parts) \
     WHERE t.scope = e.scope AND t.key = e.key AND t.key_is_parts = e.key_is_parts \
       AND greatest(t.window_ends_at, t.others_until) < $1";
