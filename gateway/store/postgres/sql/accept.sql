-- name: accept
-- absent --accept--> accepted
--
-- A key that is visibly there is only read, so that a repeat of an accepted request locks and writes nothing. Of the others,
-- the insert decides: it waits for whoever inserts the same key, and `accepted_token` is null if that one was first, or there is
-- a tombstone. Keys that
-- are free again, or released and read as they are, are accepted by `lock` and what follows it (`is_open`).
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), input AS MATERIALIZED (
    -- A value that is equal for all was sent once, and a column of nulls not at all: `unnest` makes both null.
    SELECT
        i.for_id, i.new_attempt_id,
        coalesce(i.new_service, ($4::text[])[1]) AS new_service,
        coalesce(i.new_route, ($5::text[])[1]) AS new_route,
        coalesce(i.new_operation, ($6::text[])[1]) AS new_operation,
        coalesce(i.new_scope_digest, ($7::bytea[])[1]) AS new_scope_digest,
        i.new_key_digest, i.new_key,
        coalesce(i.new_recipe, ($10::bytea[])[1]) AS new_recipe,
        i.new_digest, i.new_raw,
        coalesce(i.new_key_id, ($13::text[])[1]) AS new_key_id,
        i.new_parts,
        coalesce(i.deliver_within_us, ($15::bigint[])[1]) AS deliver_within_us,
        i.read_token,
        i.new_probe_target, i.new_probe_host, i.new_sealed_by,
        coalesce(i.new_request, ($20::text[])[1]) AS new_request,
        i.new_request_id, i.new_trace_id,
        i.new_acceptance_id,
        coalesce(i.new_sealing_key_id, ($24::text[])[1]) AS new_sealing_key_id,
        i.new_sealed, i.new_lane, coalesce(i.stops_lane, true) AS stops_lane, i.ordinal
    FROM unnest(
        $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::bytea[], $9::text[],
        $10::bytea[], $11::bytea[], $12::bytea[], $13::text[], $14::bytea[], $15::bigint[], $16::bigint[],
        $17::bytea[], $18::bytea[], $19::text[], $20::text[], $21::text[], $22::text[], $23::uuid[], $24::text[],
        $25::bytea[], $26::bytea[], $27::boolean[]
    ) WITH ORDINALITY AS i (
        for_id, new_attempt_id, new_service, new_route, new_operation, new_scope_digest, new_key_digest, new_key,
        new_recipe, new_digest, new_raw, new_key_id, new_parts, deliver_within_us, read_token,
        new_probe_target, new_probe_host, new_sealed_by, new_request, new_request_id, new_trace_id,
        new_acceptance_id, new_sealing_key_id, new_sealed, new_lane, stops_lane, ordinal
    )
), seen AS MATERIALIZED (
    SELECT i.for_id, i.read_token, o.operation_id, o.state, o.token, o.replay_until_us, o.remember_until_us
    FROM input i LEFT JOIN LATERAL (
        SELECT o.operation_id, o.state, o.token, o.replay_until_us, o.remember_until_us
        FROM idempotency_gateway.operation o
        WHERE o.operation_id = i.for_id
        LIMIT 1
    ) o ON true
), accepted AS (
    INSERT INTO idempotency_gateway.operation AS o (
        operation_id, attempt_id, token, first_claimed_us, claimed_us, lease_until_us, due_us, attempts, version,
        is_kept, state, last_event, holder, route, operation, scope_digest, key_digest, key,
        recipe, digest, raw, key_id, parts, probe_target, probe_host, sealed_by, request, request_id, trace_id
    )
    SELECT
        i.for_id, i.new_attempt_id, nextval('idempotency_gateway.token'), c.now_us, c.now_us, 0,
        c.now_us + i.deliver_within_us, 0, {record_version}, true, 'accepted', 'accept', '', i.new_route,
        i.new_operation, i.new_scope_digest, i.new_key_digest, i.new_key, i.new_recipe, i.new_digest, i.new_raw,
        i.new_key_id, i.new_parts, i.new_probe_target, i.new_probe_host, i.new_sealed_by, i.new_request,
        i.new_request_id, i.new_trace_id
    FROM seen s JOIN input i ON i.for_id = s.for_id CROSS JOIN clock c
    WHERE s.operation_id IS NULL AND {has_no_tombstone(s, c)}
    -- The same order everywhere, so that no two statements wait for one another. In a lane, which is locked, it is that of
    -- the arrival, because the token is the number there.
    ORDER BY CASE WHEN i.new_lane IS NOT NULL THEN i.ordinal END, i.for_id
    ON CONFLICT (operation_id) DO NOTHING
    RETURNING o.operation_id, o.token
), delivered AS (
    INSERT INTO idempotency_gateway.delivery (
        operation_id, acceptance_id, accepted_us, since_us, next_attempt_us, deliver_until_us, request_bytes, answers,
        waits, service, operation, route, scope_digest, lane, lane_number, lane_rank, stops_lane, is_behind
    )
    SELECT
        a.operation_id, i.new_attempt_id, c.now_us, c.now_us, c.now_us, c.now_us + i.deliver_within_us,
        octet_length(i.new_sealed), 0, 'accepted', i.new_service, i.new_operation, i.new_route, i.new_scope_digest,
        i.new_lane, CASE WHEN i.new_lane IS NULL THEN 0 ELSE a.token END, CASE WHEN i.new_lane IS NOT NULL THEN a.token END,
        i.stops_lane, i.new_lane IS NOT NULL
    FROM accepted a JOIN input i ON i.for_id = a.operation_id CROSS JOIN clock c
), kept AS (
    INSERT INTO idempotency_gateway.request (operation_id, acceptance_id, key_id, sealed)
    SELECT a.operation_id, i.new_acceptance_id, i.new_sealing_key_id, i.new_sealed
    FROM accepted a JOIN input i ON i.for_id = a.operation_id
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $28::uuid AND EXISTS (SELECT FROM accepted)
    RETURNING w.number
)
SELECT
    c.now_us, s.for_id, a.token AS accepted_token,
    coalesce(s.state = 'released' AND s.token = s.read_token OR {is_absent(s, c)}, false) AS is_open,
    (SELECT r.number FROM raised r) AS witness
FROM seen s CROSS JOIN clock c LEFT JOIN accepted a ON a.operation_id = s.for_id
