-- claimed --renew--> claimed (fenced: token and attempt id; within the lease)
--
-- A renewed claim is a slow one: it is listed for attention, so that the walk for lapsed claims need not wait for it.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[])
    AS i (for_id, for_token, for_attempt_id, lease_us)
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
        last_event = 'renew',
        lease_until_us = c.now_us + l.lease_us,
        attention_us = coalesce(o.attention_us, c.now_us)
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND l.version = {record_version}
        AND l.token = l.for_token AND l.attempt_id = l.for_attempt_id
        AND {is_claimed(l)}
    RETURNING o.operation_id
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $6::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}, {witness}
FROM clock c LEFT JOIN locked o ON true
