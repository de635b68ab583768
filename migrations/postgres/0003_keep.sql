-- What keeps the ledger: filling the hot tier from dedup_claim, newest first, and the purge of rows that have ended.
--
-- The role of the functions that do so (keeper) owns nothing and needs SELECT, UPDATE and DELETE on dedup_claim (the purge
-- locks before it deletes) and SELECT, INSERT and UPDATE on dedup_watermark.
--
-- Writers wait while an index is built in here: on up to a million rows a few seconds, and on more it is refused. There,
-- build the partitions' indexes without blocking anybody beforehand, as README.md says; then nothing is built here, only
-- attached.
SET LOCAL lock_timeout = '2s';

DO $$
DECLARE
    v_invalid text;
    v_rows    bigint;
BEGIN
    SELECT min(x.indexrelid::regclass::text) INTO v_invalid
    FROM pg_inherits i JOIN pg_index x ON x.indrelid = i.inhrelid
    WHERE i.inhparent = 'public.dedup_claim'::regclass AND NOT x.indisvalid;
    IF v_invalid IS NOT NULL THEN
        RAISE EXCEPTION 'index % is not valid: drop it and build it again', v_invalid
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;

    SELECT sum(greatest(c.reltuples, 0)) INTO v_rows
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'public.dedup_claim'::regclass
      AND 2 > (SELECT count(*) FROM pg_index x
               WHERE x.indrelid = c.oid
                 AND (pg_get_indexdef(x.indexrelid) LIKE '%(first_seen_at, registration_id, window_ends_at)'
                      OR pg_get_indexdef(x.indexrelid) LIKE '%(GREATEST(window_ends_at, others_until))'));
    IF v_rows > 1000000 THEN
        RAISE EXCEPTION 'dedup_claim has about % rows without these indexes, and writers would wait while they are built: '
            'build them first, as migrations/README.md says', v_rows
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;

-- Ascending, for new rows then go to its right end, where inserting is cheapest; newest first is read backwards. No column of
-- these two changes with a repeat, so that repeats still update their row in place.
CREATE INDEX dedup_claim_newest ON public.dedup_claim (first_seen_at, registration_id, window_ends_at);

CREATE INDEX dedup_claim_ended ON public.dedup_claim (greatest(window_ends_at, others_until));
