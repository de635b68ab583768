-- Claims: who asked for the attempt that stands and how it ended, and in history the trail of all attempts, a JSON array as on
-- PostgreSQL.

ALTER TABLE dedup_claim ADD COLUMN attempt_source_service TEXT
    CHECK (length(CAST(attempt_source_service AS BLOB)) BETWEEN 1 AND 40);
ALTER TABLE dedup_claim ADD COLUMN ended_at INTEGER;
ALTER TABLE dedup_claim ADD COLUMN fail_reason TEXT
    CHECK (fail_reason IS NULL OR (ended_at IS NOT NULL AND length(CAST(fail_reason AS BLOB)) BETWEEN 1 AND 200));

ALTER TABLE dedup_ledger ADD COLUMN attempt_source_service TEXT
    CHECK (length(CAST(attempt_source_service AS BLOB)) BETWEEN 1 AND 40);
ALTER TABLE dedup_ledger ADD COLUMN ended_at INTEGER;
ALTER TABLE dedup_ledger ADD COLUMN fail_reason TEXT
    CHECK (fail_reason IS NULL OR (ended_at IS NOT NULL AND length(CAST(fail_reason AS BLOB)) BETWEEN 1 AND 200));
ALTER TABLE dedup_ledger ADD COLUMN attempts TEXT;
