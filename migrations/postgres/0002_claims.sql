-- Claims: who asked for the attempt that stands and how it ended, and in history the trail of all attempts.
--
-- Columns only, all of them nullable: the running release goes on without them. New columns are NULL in every row there is, so
-- the checks hold and need not be validated, which would read all of history under the lock. Where the lock is not to be had
-- at once, run it again: writers must not queue behind it.
SET LOCAL lock_timeout = '2s';

ALTER TABLE public.dedup_claim
    ADD COLUMN attempt_source_service text COLLATE "C",
    ADD COLUMN ended_at               timestamptz,
    ADD COLUMN fail_reason            text COLLATE "C",
    ADD CONSTRAINT dedup_claim_attempt_source_service
        CHECK (octet_length(attempt_source_service) BETWEEN 1 AND 40) NOT VALID,
    ADD CONSTRAINT dedup_claim_fail_reason
        CHECK (fail_reason IS NULL OR (ended_at IS NOT NULL AND octet_length(fail_reason) BETWEEN 1 AND 200)) NOT VALID;

-- attempts: a JSON array of the attempts on the registration, in the order of (attempt, nonce), at most 64, the latest; NULL
-- where it was never claimed. Each is an object of attempt, nonce (hexadecimal), state, startedAtMs, and where there is one
-- leaseEndsAtMs, sourceService, ended {atMs, reason}; times are milliseconds since 1970-01-01T00:00:00Z.
ALTER TABLE public.dedup_ledger
    ADD COLUMN attempt_source_service text COLLATE "C",
    ADD COLUMN ended_at               timestamptz,
    ADD COLUMN fail_reason            text COLLATE "C",
    ADD COLUMN attempts               jsonb,
    ADD CONSTRAINT dedup_ledger_attempt_source_service
        CHECK (octet_length(attempt_source_service) BETWEEN 1 AND 40) NOT VALID,
    ADD CONSTRAINT dedup_ledger_fail_reason
        CHECK (fail_reason IS NULL OR (ended_at IS NOT NULL AND octet_length(fail_reason) BETWEEN 1 AND 200)) NOT VALID,
    ADD CONSTRAINT dedup_ledger_attempts CHECK (jsonb_typeof(attempts) = 'array') NOT VALID;

-- Merges two trails of one registration. Of two that tell of one (attempt, nonce) the later state stands, and with it start,
-- lease and end; of sources the greatest. Commutative, associative and idempotent, so facts may come in any order.
CREATE FUNCTION public.dedup_merge_attempts(p_one jsonb, p_other jsonb) RETURNS jsonb
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN p_one IS NULL THEN p_other WHEN p_other IS NULL THEN p_one ELSE (
        SELECT jsonb_agg(jsonb_strip_nulls(l.best || jsonb_build_object('sourceService', l.source))
                         ORDER BY l.attempt, l.nonce)
        FROM (
            SELECT (e ->> 'attempt')::integer AS attempt, (e ->> 'nonce') COLLATE "C" AS nonce,
                   (array_agg(e ORDER BY
                        array_position(ARRAY['REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED'], e ->> 'state') DESC,
                        (e ->> 'startedAtMs')::bigint DESC,
                        (e ->> 'leaseEndsAtMs')::bigint DESC NULLS LAST,
                        (e #>> '{ended,atMs}')::bigint DESC NULLS LAST,
                        (e #>> '{ended,reason}') COLLATE "C" DESC NULLS LAST))[1] AS best,
                   max((e ->> 'sourceService') COLLATE "C") AS source
            FROM jsonb_array_elements(p_one || p_other) AS e
            GROUP BY 1, 2
            ORDER BY 1 DESC, 2 DESC
            LIMIT 64
        ) l
    ) END
$$;
