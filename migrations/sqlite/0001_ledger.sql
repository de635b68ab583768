-- The embedded cold ledger: the same words and rules as on PostgreSQL, in one file.
--
-- Times are milliseconds since 1970-01-01T00:00:00Z, hashes and ids BLOB, text BINARY. History needs no months here.

CREATE TABLE dedup_ledger (
    scope                 TEXT NOT NULL,
    key                   TEXT NOT NULL,
    key_is_parts          INTEGER NOT NULL CHECK (key_is_parts IN (0, 1)),
    payload_sha256        BLOB NOT NULL CHECK (length(payload_sha256) = 32),
    source_service        TEXT,
    first_seen_at         INTEGER NOT NULL,
    last_seen_at          INTEGER NOT NULL,
    retry_count           INTEGER NOT NULL CHECK (retry_count BETWEEN 0 AND 4294967295),
    registration_id       BLOB NOT NULL CHECK (length(registration_id) = 8),
    nonce                 BLOB NOT NULL CHECK (length(nonce) = 8),
    window_ends_at        INTEGER NOT NULL,
    state                 TEXT NOT NULL CHECK (state IN ('REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED')),
    attempt               INTEGER NOT NULL CHECK (attempt BETWEEN 1 AND 65535),
    won_at                INTEGER NOT NULL,
    lease_ends_at         INTEGER,
    drift_count           INTEGER CHECK (drift_count BETWEEN 0 AND 4294967295),
    drift_last_sha256     BLOB CHECK (length(drift_last_sha256) = 32),
    drift_last_at         INTEGER,
    response_content_type TEXT,
    response_sha256       BLOB CHECK (length(response_sha256) = 32),
    response_length       INTEGER CHECK (response_length BETWEEN 0 AND 65536),
    false_new_of               BLOB CHECK (length(false_new_of) = 8),
    false_new_of_first_seen_at INTEGER,
    -- 31,622,400,000 ms are 366 days, the longest window a policy may give.
    CHECK (window_ends_at > first_seen_at AND window_ends_at - first_seen_at <= 31622400000),
    PRIMARY KEY (scope, key, key_is_parts, first_seen_at, registration_id)
) STRICT;

CREATE INDEX dedup_ledger_payload ON dedup_ledger
    (payload_sha256, substr(scope, 1, instr(scope, ':') - 1), first_seen_at DESC, registration_id DESC);

CREATE TABLE dedup_claim (
    scope                 TEXT NOT NULL,
    key                   TEXT NOT NULL,
    key_is_parts          INTEGER NOT NULL CHECK (key_is_parts IN (0, 1)),
    payload_sha256        BLOB NOT NULL CHECK (length(payload_sha256) = 32),
    source_service        TEXT,
    first_seen_at         INTEGER NOT NULL,
    last_seen_at          INTEGER NOT NULL,
    retry_count           INTEGER NOT NULL CHECK (retry_count BETWEEN 0 AND 4294967295),
    registration_id       BLOB NOT NULL CHECK (length(registration_id) = 8),
    nonce                 BLOB NOT NULL CHECK (length(nonce) = 8),
    window_ends_at        INTEGER NOT NULL,
    state                 TEXT NOT NULL CHECK (state IN ('REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED')),
    attempt               INTEGER NOT NULL CHECK (attempt BETWEEN 1 AND 65535),
    won_at                INTEGER NOT NULL,
    lease_ends_at         INTEGER,
    drift_count           INTEGER CHECK (drift_count BETWEEN 0 AND 4294967295),
    drift_last_sha256     BLOB CHECK (length(drift_last_sha256) = 32),
    drift_last_at         INTEGER,
    response_content_type TEXT,
    response_body         BLOB CHECK (length(response_body) <= 65536),
    CHECK (window_ends_at > first_seen_at AND window_ends_at - first_seen_at <= 31622400000),
    PRIMARY KEY (scope, key, key_is_parts)
) STRICT;

CREATE TABLE dedup_watermark (
    one_row       INTEGER PRIMARY KEY CHECK (one_row = 1),
    drained_until INTEGER NOT NULL
) STRICT;
