-- in_doubt --takeover--> claimed (fenced on the token that was read; the claim carries doubt)
--
-- A claimed record whose lease is over is in doubt. An attempt takes over once.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest(
        $2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[]
    ) AS i (
        for_id, for_token, new_attempt_id, new_holder, lease_us, new_request, new_request_id, new_trace_id
    )
    ORDER BY for_id
), locked AS MATERIALIZED (
    SELECT i.*, o.*
    FROM input i CROSS JOIN LATERAL (
        SELECT * FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id FOR NO KEY UPDATE
    ) o
), clock AS MATERIALIZED (
    -- Read when every lock is held: whoever was waited for came before.
    SELECT {now} AS now_us FROM (SELECT count(*) FROM locked) locks
), changed AS (
    UPDATE idempotency_gateway.operation o SET
        state = 'claimed',
        last_event = 'takeover',
        -- Drawn now that the row is locked.
        token = nextval('idempotency_gateway.token'),
        attempt_id = l.new_attempt_id,
        holder = l.new_holder,
        carries_doubt = true,
        attempts = o.attempts + 1,
        claimed_us = c.now_us,
        lease_until_us = c.now_us + l.lease_us,
        remember_until_us = 0,
        due_us = NULL,
        -- Kept, so that a lapse is found also by who walked past this token before it was committed.
        attention_us = coalesce(o.attention_us, c.now_us),
        doubt = NULL,
        resolution_id = NULL,
        request = l.new_request,
        request_id = l.new_request_id,
        trace_id = l.new_trace_id
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND l.version = {record_version}
        AND l.token = l.for_token AND NOT (l.last_event = 'takeover' AND l.attempt_id = l.new_attempt_id)
        AND {is_in_doubt(l)}
    RETURNING o.operation_id, o.token
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $10::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}, ch.token AS granted_token, {witness}
FROM clock c LEFT JOIN locked o ON true LEFT JOIN changed ch ON ch.operation_id = o.operation_id
