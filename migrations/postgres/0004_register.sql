-- The registering statement as a function of the database.
--
-- Behind a pooler no client may leave a named statement on a connection, so each call would be parsed and planned anew: 3 ms of
-- CPU for this one, ten times what running it takes. A function's plans are kept by the database's own session.
--
-- Registers rows of distinct keys, each so: the claim is inserted, replaced where its window is over, left alone where this check
-- won it, taken over where it failed or its lease is over, else counted on; history takes the row that then stands. Returns the
-- rows that stand. The columns come as arrays, p_replay_ms is for how many milliseconds a check is given again what it won.
--
-- It runs with the caller's rights, so the functions' roles need nothing new. The release that runs does not call it.

CREATE FUNCTION public.dedup_register(
    p_scope text[], p_key text[], p_key_is_parts boolean[], p_payload_sha256 bytea[],
    p_source_service text[], p_first_seen_at timestamptz[], p_last_seen_at timestamptz[], p_retry_count bigint[],
    p_registration_id bytea[], p_nonce bytea[], p_window_ends_at timestamptz[], p_state text[],
    p_attempt integer[], p_won_at timestamptz[], p_lease_ends_at timestamptz[], p_drift_count bigint[],
    p_drift_last_sha256 bytea[], p_drift_last_at timestamptz[], p_response_content_type text[], p_attempt_source_service text[],
    p_ended_at timestamptz[], p_fail_reason text[],
    p_replay_ms bigint
) RETURNS SETOF public.dedup_claim
LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp
AS $function$
DECLARE
    v_claim public.dedup_claim;
BEGIN
    -- A key that nothing stands under, alone: what most calls are, and a third of the work. Where anything does stand, in either
    -- table, the statement below decides; a row that was inserted here is this check's own to it.
    IF cardinality(p_scope) = 1 THEN
        INSERT INTO public.dedup_claim (scope, key, key_is_parts, payload_sha256, source_service,
            first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at,
            lease_ends_at, drift_count, drift_last_sha256, drift_last_at, response_content_type, attempt_source_service,
            ended_at, fail_reason)
        VALUES (p_scope[1], p_key[1], p_key_is_parts[1], p_payload_sha256[1], p_source_service[1], p_first_seen_at[1],
            p_last_seen_at[1], p_retry_count[1], p_registration_id[1], p_nonce[1], p_window_ends_at[1], p_state[1], p_attempt[1],
            p_won_at[1], p_lease_ends_at[1], p_drift_count[1], p_drift_last_sha256[1], p_drift_last_at[1],
            p_response_content_type[1], p_attempt_source_service[1], p_ended_at[1], p_fail_reason[1])
        ON CONFLICT DO NOTHING RETURNING * INTO v_claim;
        IF FOUND THEN
            INSERT INTO public.dedup_ledger (scope, key, key_is_parts, payload_sha256, source_service,
                first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at,
                lease_ends_at, drift_count, drift_last_sha256, drift_last_at, response_content_type, attempt_source_service,
                ended_at, fail_reason, attempts)
            VALUES (v_claim.scope, v_claim.key, v_claim.key_is_parts, v_claim.payload_sha256, v_claim.source_service,
                v_claim.first_seen_at, v_claim.last_seen_at, v_claim.retry_count, v_claim.registration_id, v_claim.nonce,
                v_claim.window_ends_at, v_claim.state, v_claim.attempt, v_claim.won_at, v_claim.lease_ends_at,
                v_claim.drift_count, v_claim.drift_last_sha256, v_claim.drift_last_at, v_claim.response_content_type,
                v_claim.attempt_source_service, v_claim.ended_at, v_claim.fail_reason,
                CASE WHEN v_claim.attempt > 1 OR v_claim.lease_ends_at IS NOT NULL THEN jsonb_build_array(jsonb_strip_nulls(
                    jsonb_build_object('attempt', v_claim.attempt, 'nonce', encode(v_claim.nonce, 'hex'),
                        'state', v_claim.state, 'startedAtMs', (extract(epoch FROM v_claim.won_at) * 1000)::bigint,
                        'leaseEndsAtMs', (extract(epoch FROM v_claim.lease_ends_at) * 1000)::bigint,
                        'sourceService', coalesce(v_claim.attempt_source_service,
                            CASE WHEN v_claim.attempt = 1 THEN v_claim.source_service END),
                        'ended', CASE WHEN v_claim.ended_at IS NOT NULL THEN jsonb_build_object(
                            'atMs', (extract(epoch FROM v_claim.ended_at) * 1000)::bigint, 'reason', v_claim.fail_reason)
                            END))) END)
            ON CONFLICT DO NOTHING;
            IF FOUND THEN
                RETURN NEXT v_claim;
                RETURN;
            END IF;
        END IF;
    END IF;

    RETURN QUERY
    WITH claim AS (INSERT INTO public.dedup_claim AS t (scope, key, key_is_parts, payload_sha256, source_service,
    first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at,
    lease_ends_at, drift_count, drift_last_sha256, drift_last_at, response_content_type, attempt_source_service,
    ended_at, fail_reason)
        SELECT * FROM unnest(p_scope, p_key, p_key_is_parts, p_payload_sha256, p_source_service, p_first_seen_at,
            p_last_seen_at, p_retry_count, p_registration_id, p_nonce, p_window_ends_at, p_state, p_attempt,
            p_won_at, p_lease_ends_at, p_drift_count, p_drift_last_sha256, p_drift_last_at, p_response_content_type,
            p_attempt_source_service, p_ended_at, p_fail_reason)
        ON CONFLICT (scope, key, key_is_parts) DO UPDATE SET (payload_sha256, source_service, first_seen_at,
            last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at, lease_ends_at,
            attempt_source_service, ended_at, fail_reason, drift_count, drift_last_sha256, drift_last_at,
            response_content_type, response_body, others_until) = (SELECT
            CASE WHEN f.replaced THEN excluded.payload_sha256 ELSE t.payload_sha256 END,
            CASE WHEN f.replaced THEN excluded.source_service ELSE t.source_service END,
            CASE WHEN f.replaced THEN excluded.first_seen_at ELSE t.first_seen_at END,
            CASE WHEN f.replaced THEN excluded.last_seen_at WHEN f.own THEN t.last_seen_at ELSE greatest(t.last_seen_at,
                excluded.first_seen_at) END,
            CASE WHEN f.replaced THEN excluded.retry_count WHEN f.own THEN t.retry_count ELSE least(t.retry_count + 1,
                4294967295) END,
            CASE WHEN f.replaced THEN excluded.registration_id ELSE t.registration_id END,
            CASE WHEN f.replaced OR f.taken THEN excluded.nonce ELSE t.nonce END,
            CASE WHEN f.replaced THEN excluded.window_ends_at ELSE t.window_ends_at END,
            CASE WHEN f.replaced THEN excluded.state WHEN f.taken AND excluded.lease_ends_at IS NULL THEN 'REGISTERED'
                WHEN f.taken THEN 'IN_PROGRESS' ELSE t.state END,
            CASE WHEN f.replaced THEN excluded.attempt WHEN f.taken THEN least(t.attempt + 1, 65535) ELSE t.attempt END,
            CASE WHEN f.replaced OR f.taken THEN excluded.won_at ELSE t.won_at END,
            CASE WHEN f.replaced OR (f.taken AND excluded.lease_ends_at IS NULL) THEN excluded.lease_ends_at WHEN f.taken
                THEN least(excluded.lease_ends_at, t.window_ends_at) ELSE t.lease_ends_at END,
            CASE WHEN f.replaced THEN excluded.attempt_source_service WHEN f.taken THEN excluded.source_service ELSE
                t.attempt_source_service END,
            CASE WHEN f.replaced THEN excluded.ended_at WHEN f.taken THEN NULL ELSE t.ended_at END,
            CASE WHEN f.replaced THEN excluded.fail_reason WHEN f.taken THEN NULL ELSE t.fail_reason END,
            CASE WHEN f.replaced THEN excluded.drift_count WHEN f.drifted THEN least(coalesce(t.drift_count, 0) + 1,
                4294967295) ELSE t.drift_count END,
            CASE WHEN f.replaced THEN excluded.drift_last_sha256 WHEN f.drifted AND f.later_drift THEN
                excluded.payload_sha256 ELSE t.drift_last_sha256 END,
            CASE WHEN f.replaced THEN excluded.drift_last_at WHEN f.drifted AND f.later_drift THEN excluded.first_seen_at
                ELSE t.drift_last_at END,
            CASE WHEN f.replaced OR f.taken THEN NULL ELSE t.response_content_type END,
            CASE WHEN f.replaced OR f.taken THEN NULL ELSE t.response_body END,
            CASE WHEN f.replaced THEN greatest(t.others_until, t.window_ends_at) ELSE t.others_until END
            FROM (SELECT g.own, t.window_ends_at <= excluded.first_seen_at AS replaced,
                NOT g.own AND (t.state = 'FAILED' OR (t.state = 'IN_PROGRESS' AND (t.lease_ends_at >
                excluded.first_seen_at) IS NOT TRUE)) AS taken,
                NOT g.own AND t.payload_sha256 <> excluded.payload_sha256 AS drifted,
                t.drift_last_at IS NULL OR (excluded.first_seen_at, excluded.payload_sha256) > (t.drift_last_at,
                t.drift_last_sha256) AS later_drift
                FROM (SELECT (t.nonce = excluded.nonce AND (s.very_same OR t.won_at > excluded.first_seen_at - p_replay_ms *
                    interval '1 millisecond') AND (t.state = 'REGISTERED' OR (t.state = 'IN_PROGRESS' AND (s.very_same OR
                    t.lease_ends_at > excluded.first_seen_at)))) IS TRUE AS own
                    FROM (SELECT t.registration_id = excluded.registration_id OR (t.attempt > 1 AND t.won_at =
                        excluded.won_at) AS very_same) s) g) f)
        RETURNING t.*),
    history AS (INSERT INTO public.dedup_ledger AS t (scope, key, key_is_parts, payload_sha256, source_service,
        first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at,
        lease_ends_at, drift_count, drift_last_sha256, drift_last_at, response_content_type, attempt_source_service,
        ended_at, fail_reason, response_sha256, response_length, attempts) SELECT scope, key, key_is_parts,
        payload_sha256, source_service, first_seen_at, last_seen_at, retry_count, registration_id, nonce, window_ends_at,
        state, attempt, won_at, lease_ends_at, drift_count, drift_last_sha256, drift_last_at, response_content_type,
        attempt_source_service, ended_at, fail_reason, sha256(response_body), octet_length(response_body),
            CASE WHEN attempt > 1 OR lease_ends_at IS NOT NULL THEN jsonb_build_array(jsonb_strip_nulls(
                jsonb_build_object( 'attempt', attempt, 'nonce', encode(nonce, 'hex'), 'state', state, 'startedAtMs',
                (extract(epoch FROM won_at) * 1000)::bigint, 'leaseEndsAtMs',
                (extract(epoch FROM lease_ends_at) * 1000)::bigint, 'sourceService', coalesce(attempt_source_service,
            CASE WHEN attempt = 1 THEN source_service END), 'ended',
            CASE WHEN ended_at IS NOT NULL THEN jsonb_build_object( 'atMs',
                (extract(epoch FROM ended_at) * 1000)::bigint, 'reason', fail_reason) END))) END FROM claim
        ON CONFLICT (scope, key, key_is_parts, first_seen_at, registration_id) DO UPDATE SET (state, attempt, nonce,
            won_at, lease_ends_at, attempt_source_service, ended_at, fail_reason, attempts, last_seen_at, window_ends_at,
            retry_count, source_service, drift_count, drift_last_sha256, drift_last_at, response_content_type,
            response_sha256, response_length) = (SELECT
            CASE WHEN f.better THEN excluded.state ELSE t.state END,
            CASE WHEN f.better THEN excluded.attempt ELSE t.attempt END,
            CASE WHEN f.better THEN excluded.nonce ELSE t.nonce END,
            CASE WHEN f.better THEN excluded.won_at ELSE t.won_at END,
            CASE WHEN f.better THEN excluded.lease_ends_at ELSE t.lease_ends_at END,
            CASE WHEN f.better THEN excluded.attempt_source_service ELSE t.attempt_source_service END,
            CASE WHEN f.better THEN excluded.ended_at ELSE t.ended_at END,
            CASE WHEN f.better THEN excluded.fail_reason ELSE t.fail_reason END,
            CASE WHEN excluded.attempts IS NULL THEN t.attempts ELSE dedup_merge_attempts(t.attempts,
                excluded.attempts) END, greatest(t.last_seen_at, excluded.last_seen_at), greatest(t.window_ends_at,
                excluded.window_ends_at), greatest(t.retry_count, excluded.retry_count), coalesce(t.source_service,
                excluded.source_service), greatest(t.drift_count, excluded.drift_count),
            CASE WHEN f.later_drift THEN excluded.drift_last_sha256 ELSE t.drift_last_sha256 END,
            CASE WHEN f.later_drift THEN excluded.drift_last_at ELSE t.drift_last_at END,
                coalesce(t.response_content_type, excluded.response_content_type), coalesce(t.response_sha256,
                excluded.response_sha256), coalesce(t.response_length,
                excluded.response_length) FROM (SELECT (excluded.state = 'RESOLVED', excluded.attempt,
                array_position(ARRAY['REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED'], excluded.state),
                excluded.won_at, excluded.nonce, coalesce(excluded.lease_ends_at, '-infinity'),
                coalesce(excluded.ended_at, '-infinity'), coalesce(excluded.fail_reason, ''),
                coalesce(excluded.attempt_source_service, '')) > (t.state = 'RESOLVED', t.attempt,
                array_position(ARRAY['REGISTERED', 'IN_PROGRESS', 'FAILED', 'RESOLVED'], t.state), t.won_at, t.nonce,
                coalesce(t.lease_ends_at, '-infinity'), coalesce(t.ended_at, '-infinity'), coalesce(t.fail_reason, ''),
                coalesce(t.attempt_source_service, '')) AS better,
                (excluded.drift_last_at IS NOT NULL AND (t.drift_last_at IS NULL OR (excluded.drift_last_at,
                excluded.drift_last_sha256) > (t.drift_last_at, t.drift_last_sha256))) AS later_drift) f))
    SELECT * FROM claim;
END
$function$;
