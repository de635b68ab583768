-- A page of live rows as a function of the database, for the keeper.
--
-- Asked for plainly, each page was planned anew: 4 ms over 16 partitions, four times what reading 1,000 rows takes. And where the
-- planner knew little of the table, as after a restore or a load, it read and sorted all live rows for each page. A function's
-- plan is kept, and its settings are its own: the rows come backwards from dedup_claim_newest, which has all three columns, so that
-- rows whose window is over are passed over within the index.
--
-- Rows first seen from p_from on, older than the place (p_before, p_before_id), whose window is not over at p_now, newest first. It
-- runs with the caller's rights. The release that runs does not call it.

CREATE FUNCTION public.dedup_newest_live(
    p_from timestamptz, p_before timestamptz, p_before_id bytea, p_now timestamptz, p_limit bigint
) RETURNS SETOF public.dedup_claim
LANGUAGE plpgsql
STABLE
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_bitmapscan = off
SET enable_seqscan = off
SET enable_sort = off
AS $$
BEGIN
    RETURN QUERY
    SELECT * FROM public.dedup_claim
    WHERE first_seen_at >= p_from AND (first_seen_at, registration_id) < (p_before, p_before_id) AND window_ends_at > p_now
    ORDER BY first_seen_at DESC, registration_id DESC LIMIT p_limit;
END
$$;
