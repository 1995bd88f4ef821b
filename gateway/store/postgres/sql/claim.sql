-- name: claim
-- absent --claim--> claimed
-- released --claim--> claimed (fenced on the token that was read; only for the same request)
--
-- A key that is visibly held or used is only read, so that a retry of a completed operation locks and writes nothing. The
-- others are tried in id order. A row of `granted` has its token and time; a new record has no earlier time and one attempt.
-- Neither granted nor seen: there is a tombstone, or the claim lost a race to a record that is not in this statement's snapshot.
-- Read it. No statement that is older than its claim is under way when a record becomes a narrow tombstone, so that none can
-- miss both (`tombstone`).
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), input AS MATERIALIZED (
    -- A value that is equal for all was sent once, and a column of nulls not at all: `unnest` makes both null.
    SELECT
        i.for_id, i.new_attempt_id,
        coalesce(i.new_holder, ($4::text[])[1]) AS new_holder,
        coalesce(i.new_route, ($5::text[])[1]) AS new_route,
        coalesce(i.new_operation, ($6::text[])[1]) AS new_operation,
        coalesce(i.new_scope_digest, ($7::bytea[])[1]) AS new_scope_digest,
        i.new_key_digest, i.new_key,
        coalesce(i.new_recipe, ($10::bytea[])[1]) AS new_recipe,
        i.new_digest, i.new_raw,
        coalesce(i.new_key_id, ($13::text[])[1]) AS new_key_id,
        i.new_parts,
        coalesce(i.lease_us, ($15::bigint[])[1]) AS new_lease_us,
        i.read_token,
        coalesce(i.due_in_us, ($17::bigint[])[1]) AS due_in_us,
        i.new_probe_target, i.new_probe_host, i.new_sealed_by,
        coalesce(i.new_request, ($21::text[])[1]) AS new_request,
        i.new_request_id, i.new_trace_id
    FROM unnest(
        $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::text[],
        $10::bytea[], $11::bytea[], $12::bytea[], $13::text[], $14::bytea[], $15::bigint[], $16::bigint[],
        $17::bigint[], $18::bytea[], $19::bytea[], $20::text[], $21::text[], $22::text[], $23::text[]
    ) AS i (
        for_id, new_attempt_id, new_holder, new_route, new_operation, new_scope_digest, new_key_digest, new_key,
        new_recipe, new_digest, new_raw, new_key_id, new_parts, lease_us, read_token, due_in_us,
        new_probe_target, new_probe_host, new_sealed_by, new_request, new_request_id, new_trace_id
    )
), seen AS MATERIALIZED (
    SELECT i.*, {record}
    FROM input i LEFT JOIN LATERAL (
        SELECT {record} FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id LIMIT 1
    ) o ON true
), granted AS (
    INSERT INTO idempotency_gateway.operation AS o (
        operation_id, attempt_id, token, first_claimed_us, claimed_us, lease_until_us, lease_us, due_us, attempts, version,
        state, last_event, holder, route, operation, scope_digest, key_digest, key,
        recipe, digest, raw, key_id, parts, probe_target, probe_host, sealed_by, request, request_id, trace_id
    )
    SELECT
        s.for_id, s.new_attempt_id, nextval('idempotency_gateway.token'), c.now_us, c.now_us, c.now_us + s.new_lease_us,
        s.new_lease_us::integer, c.now_us + s.due_in_us, 1, {record_version}, 'claimed', 'claim', s.new_holder,
        s.new_route, s.new_operation,
        s.new_scope_digest, s.new_key_digest, s.new_key, s.new_recipe, s.new_digest, s.new_raw, s.new_key_id,
        s.new_parts, s.new_probe_target, s.new_probe_host, s.new_sealed_by, s.new_request, s.new_request_id,
        s.new_trace_id
    FROM seen s CROSS JOIN clock c
    WHERE s.operation_id IS NULL AND {has_no_tombstone(s, c)}
        OR s.state = 'released' AND s.token = s.read_token
        OR {is_absent(s, c)}
    ORDER BY s.for_id
    ON CONFLICT (operation_id) DO UPDATE SET
        -- Draw it now that the row is locked: the token of `excluded` may be lower than one drawn for this row meanwhile.
        token = nextval('idempotency_gateway.token'),
        attempt_id = excluded.attempt_id,
        resolution_id = NULL,
        claimed_us = excluded.claimed_us,
        lease_until_us = excluded.lease_until_us,
        lease_us = excluded.lease_us,
        replay_until_us = 0,
        remember_until_us = 0,
        completed_us = NULL,
        due_us = excluded.due_us,
        attention_us = NULL,
        drop_day = NULL,
        status = NULL,
        resource = NULL,
        api_version = NULL,
        carried_us = NULL,
        state = 'claimed',
        last_event = 'claim',
        doubt = NULL,
        holder = excluded.holder,
        probe_target = excluded.probe_target,
        probe_host = excluded.probe_host,
        request = excluded.request,
        request_id = excluded.request_id,
        trace_id = excluded.trace_id,
        -- Everything above is the same in both cases. What follows is kept by a retry, and new if the key was free again.
        (first_claimed_us, attempts, route, operation, scope_digest, key_digest, key, sealed_by) = (
            SELECT o.first_claimed_us, o.attempts + 1, o.route, o.operation, o.scope_digest, o.key_digest, o.key,
                -- The key is as it was sealed first.
                CASE
                    WHEN excluded.sealed_by IS NULL OR o.sealed_by = excluded.sealed_by THEN o.sealed_by
                    WHEN o.sealed_by IS NULL THEN excluded.sealed_by
                    ELSE (
                        SELECT string_agg(DISTINCT k.id COLLATE "C", ' ' ORDER BY k.id COLLATE "C")
                        FROM unnest(string_to_array(o.sealed_by || ' ' || excluded.sealed_by, ' ')) AS k (id)
                    )
                END
            WHERE greatest(o.replay_until_us, o.remember_until_us) > excluded.claimed_us
            UNION ALL
            SELECT excluded.first_claimed_us, 1, excluded.route, excluded.operation, excluded.scope_digest,
                excluded.key_digest, excluded.key, excluded.sealed_by
            WHERE greatest(o.replay_until_us, o.remember_until_us) <= excluded.claimed_us
        ),
        (recipe, digest, raw, key_id, parts) = (
            SELECT o.recipe, o.digest, o.raw, o.key_id, o.parts
            WHERE o.recipe IS NOT NULL AND greatest(o.replay_until_us, o.remember_until_us) > excluded.claimed_us
            UNION ALL
            SELECT excluded.recipe, excluded.digest, excluded.raw, excluded.key_id, excluded.parts
            WHERE o.recipe IS NULL OR greatest(o.replay_until_us, o.remember_until_us) <= excluded.claimed_us
        )
    WHERE o.version BETWEEN {record_versions}
        AND o.state IN ('released', 'completed', 'tombstone')
        AND (
            greatest(o.replay_until_us, o.remember_until_us) <= excluded.claimed_us
            OR o.state = 'released'
                AND o.token = (SELECT i.read_token FROM input i WHERE i.for_id = o.operation_id)
                AND (
                    o.recipe IS NULL
                    OR o.recipe = excluded.recipe AND o.digest = excluded.digest
                    OR o.recipe <> excluded.recipe AND o.key_id = excluded.key_id AND o.raw = excluded.raw
                )
        )
    RETURNING o.operation_id, o.token, o.attempts, o.first_claimed_us, o.claimed_us
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $24::uuid AND EXISTS (SELECT FROM granted)
    RETURNING w.number
)
SELECT c.now_us, NULL::uuid AS granted_id, NULL::bigint AS granted_token, NULL::integer AS granted_attempts, NULL::bigint AS granted_first_us, {record}, (SELECT r.number FROM raised r) AS witness
FROM seen o CROSS JOIN clock c
WHERE o.operation_id IS NOT NULL
UNION ALL
SELECT g.claimed_us, g.operation_id, g.token, g.attempts, g.first_claimed_us, {no_record}, (SELECT r.number FROM raised r) AS witness
FROM granted g
