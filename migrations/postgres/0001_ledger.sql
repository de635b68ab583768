-- The cold ledger: history (dedup_ledger) and what is inside its window (dedup_claim).
--
-- Run it as the owner of these tables, on a direct connection. The functions' roles own nothing and need:
--   cold-writer, check    SELECT, INSERT, UPDATE on dedup_ledger, dedup_claim and dedup_watermark;
--                         EXECUTE on dedup_ensure_month
--   audit                 SELECT on the three tables
-- Grants on dedup_ledger cover its months. Nothing is granted here, as the roles' names are the deployment's.
--
-- All times have the millisecond precision of the ledger clock. All text compares byte by byte. A key of one text and a
-- tuple's JSON (key_is_parts) are different keys even where their text is the same, so that column belongs to every
-- unique key.

CREATE TABLE public.dedup_ledger (
    scope                 text COLLATE "C" NOT NULL CHECK (octet_length(scope) BETWEEN 3 AND 128),
    key                   text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
    key_is_parts          boolean NOT NULL,
    payload_sha256        bytea NOT NULL CHECK (octet_length(payload_sha256) = 32),
    source_service        text COLLATE "C" CHECK (octet_length(source_service) BETWEEN 1 AND 40),
    first_seen_at         timestamptz NOT NULL,
    last_seen_at          timestamptz NOT NULL,
    retry_count           bigint NOT NULL CHECK (retry_count BETWEEN 0 AND 4294967295),
    registration_id       bytea NOT NULL CHECK (octet_length(registration_id) = 8),
    nonce                 bytea NOT NULL CHECK (octet_length(nonce) = 8),
    window_ends_at        timestamptz NOT NULL,
    state                 text COLLATE "C" NOT NULL
                          CHECK (state IN ('REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED')),
    attempt               integer NOT NULL CHECK (attempt BETWEEN 1 AND 65535),
    won_at                timestamptz NOT NULL,
    lease_ends_at         timestamptz,
    drift_count           bigint CHECK (drift_count BETWEEN 0 AND 4294967295),
    drift_last_sha256     bytea CHECK (octet_length(drift_last_sha256) = 32),
    drift_last_at         timestamptz,
    -- Of a stored response history keeps what proves it, not its body.
    response_content_type text COLLATE "C" CHECK (octet_length(response_content_type) BETWEEN 1 AND 128),
    response_sha256       bytea CHECK (octet_length(response_sha256) = 32),
    response_length       integer CHECK (response_length BETWEEN 0 AND 65536),
    -- A false NEW names the least earlier registration whose window it overlaps under another nonce; its first sighting
    -- says which month that row is in.
    false_new_of               bytea CHECK (octet_length(false_new_of) = 8),
    false_new_of_first_seen_at timestamptz,
    -- 366 days is the longest window a policy may give; the search for overlaps relies on it.
    CONSTRAINT dedup_ledger_window
        CHECK (window_ends_at > first_seen_at AND window_ends_at - first_seen_at <= interval '366 days'),
    CONSTRAINT dedup_ledger_drift CHECK (num_nulls(drift_count, drift_last_sha256, drift_last_at) IN (0, 3)),
    CONSTRAINT dedup_ledger_response
        CHECK (num_nulls(response_content_type, response_sha256, response_length) IN (0, 3)),
    CONSTRAINT dedup_ledger_false_new CHECK (num_nulls(false_new_of, false_new_of_first_seen_at) IN (0, 2)),
    PRIMARY KEY (scope, key, key_is_parts, first_seen_at, registration_id)
) PARTITION BY RANGE (first_seen_at);

-- Months are made by dedup_ensure_month. There is no DEFAULT partition: it would block concurrent detach.

-- Search by payload hash: one tenant's rows, newest first.
CREATE INDEX dedup_ledger_payload ON public.dedup_ledger
    (payload_sha256, split_part(scope, ':', 1), first_seen_at DESC, registration_id DESC);

CREATE TABLE public.dedup_claim (
    scope                 text COLLATE "C" NOT NULL CHECK (octet_length(scope) BETWEEN 3 AND 128),
    key                   text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
    key_is_parts          boolean NOT NULL,
    payload_sha256        bytea NOT NULL CHECK (octet_length(payload_sha256) = 32),
    source_service        text COLLATE "C" CHECK (octet_length(source_service) BETWEEN 1 AND 40),
    first_seen_at         timestamptz NOT NULL,
    last_seen_at          timestamptz NOT NULL,
    retry_count           bigint NOT NULL CHECK (retry_count BETWEEN 0 AND 4294967295),
    registration_id       bytea NOT NULL CHECK (octet_length(registration_id) = 8),
    nonce                 bytea NOT NULL CHECK (octet_length(nonce) = 8),
    window_ends_at        timestamptz NOT NULL,
    state                 text COLLATE "C" NOT NULL
                          CHECK (state IN ('REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED')),
    attempt               integer NOT NULL CHECK (attempt BETWEEN 1 AND 65535),
    won_at                timestamptz NOT NULL,
    lease_ends_at         timestamptz,
    drift_count           bigint CHECK (drift_count BETWEEN 0 AND 4294967295),
    drift_last_sha256     bytea CHECK (octet_length(drift_last_sha256) = 32),
    drift_last_at         timestamptz,
    response_content_type text COLLATE "C" CHECK (octet_length(response_content_type) BETWEEN 1 AND 128),
    response_body         bytea CHECK (octet_length(response_body) <= 65536),
    -- The latest window end of this key's other registrations, displaced or late. While it is after first_seen_at,
    -- history holds an overlap to look at. A purge must wait for the later of this and window_ends_at.
    others_until          timestamptz,
    CONSTRAINT dedup_claim_window
        CHECK (window_ends_at > first_seen_at AND window_ends_at - first_seen_at <= interval '366 days'),
    CONSTRAINT dedup_claim_drift CHECK (num_nulls(drift_count, drift_last_sha256, drift_last_at) IN (0, 3)),
    CONSTRAINT dedup_claim_response CHECK (num_nulls(response_content_type, response_body) IN (0, 2)),
    PRIMARY KEY (scope, key, key_is_parts)
) PARTITION BY HASH (scope, key, key_is_parts);

-- Repeats update rows in place, and no indexed column of theirs changes: the free space keeps those updates in the page.
DO $$
BEGIN
    FOR n IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE public.dedup_claim_%s PARTITION OF public.dedup_claim
                 FOR VALUES WITH (MODULUS 16, REMAINDER %s) WITH (fillfactor = 85)',
            lpad(n::text, 2, '0'), n);
    END LOOP;
END
$$;

CREATE TABLE public.dedup_watermark (
    one_row       boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    drained_until timestamptz NOT NULL
);

-- Creates the month of p_at, where it is missing. Returns whether it did.
--
-- p_now is the ledger clock's: a month is made only for a first sighting that is plausible at that time. LIKE and ATTACH
-- take no lock that a writer waits for; PARTITION OF would. Bounds are UTC with their offset, and it is the bounds that
-- say whether a month is there, not the name.
CREATE FUNCTION public.dedup_ensure_month(p_at timestamptz, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
SET "TimeZone" = 'UTC'
SET "DateStyle" = 'ISO, MDY'
AS $$
DECLARE
    v_from timestamptz := date_trunc('month', p_at);
    v_to   timestamptz := date_trunc('month', p_at) + interval '1 month';
    v_name text := 'dedup_ledger_' || to_char(p_at, 'YYYY_MM');
BEGIN
    IF p_at < p_now - interval '400 days' OR p_at > p_now + interval '2 days' THEN
        RAISE EXCEPTION 'no month is made for %, which is not within 400 days before and 2 days after %', p_at, p_now
            USING ERRCODE = 'datetime_field_overflow';
    END IF;
    -- Two writers that miss the same month make it once. Held to the end of this transaction, and taken nowhere else.
    PERFORM pg_advisory_xact_lock(7311602458046357349);
    IF EXISTS (
        SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'public.dedup_ledger'::regclass AND NOT i.inhdetachpending
          AND pg_get_expr(c.relpartbound, c.oid) = format('FOR VALUES FROM (%L) TO (%L)', v_from, v_to)
    ) THEN
        RETURN false;
    END IF;
    EXECUTE format(
        'CREATE TABLE public.%I (LIKE public.dedup_ledger INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)
             WITH (fillfactor = 90)', v_name);
    EXECUTE format(
        'ALTER TABLE public.dedup_ledger ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)', v_name, v_from, v_to);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION public.dedup_ensure_month(timestamptz, timestamptz) FROM PUBLIC;
