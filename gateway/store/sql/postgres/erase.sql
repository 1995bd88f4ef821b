-- released | tombstone --erase--> absent (an operator forgot the key)
--
-- A completed record whose replay window is over is a tombstone.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[])
    AS i (for_id)
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
    DELETE FROM idempotency_gateway.operation o
    USING locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND o.version = 1
        AND o.remember_until_us > c.now_us
        AND (
            o.state IN ('released', 'tombstone')
            OR o.state = 'completed' AND o.replay_until_us <= c.now_us
        )
    RETURNING o.operation_id
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}
FROM clock c LEFT JOIN locked o ON true
