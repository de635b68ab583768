-- What keeps the ledger: filling the hot tier from dedup_claim, newest first, and the purge of rows that have ended.

CREATE INDEX dedup_claim_newest ON dedup_claim (first_seen_at, registration_id, window_ends_at);

CREATE INDEX dedup_claim_ended ON dedup_claim (window_ends_at);
