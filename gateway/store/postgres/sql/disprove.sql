-- in_doubt --disprove--> released (fenced on the token that was read)
--
-- A claimed record whose lease is over is in doubt. Who said so is written down with it.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::text[], $7::text[])
    AS i (for_id, for_token, by_resolution_id, remember_us, by_who, by_why)
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
        state = 'released',
        last_event = 'disprove',
        carries_doubt = false,
        lease_until_us = 0,
        remember_until_us = c.now_us + l.remember_us,
        due_us = c.now_us + l.remember_us,
        attention_us = NULL,
        doubt = NULL,
        resolution_id = l.by_resolution_id
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND l.version = {record_version}
        AND l.token = l.for_token
        AND {is_in_doubt(l)}
    RETURNING o.operation_id, o.token, l.by_who, l.by_why
), audited AS (
    INSERT INTO idempotency_gateway.audit (operation_id, at_us, keep_until_us, token, event, who, why)
    SELECT ch.operation_id, c.now_us, c.now_us + {audit_keep_us}, ch.token, 'disprove', ch.by_who, ch.by_why
    FROM changed ch CROSS JOIN clock c
    WHERE ch.by_who IS NOT NULL
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $8::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}, {witness}
FROM clock c LEFT JOIN locked o ON true
