-- completed --purge--> tombstone (an operator dropped the answer)
--
-- The one answer that leaves by itself: an operator wants it gone now.
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
    UPDATE idempotency_gateway.operation o SET
        state = 'tombstone',
        last_event = 'purge',
        replay_until_us = 0,
        due_us = o.remember_until_us,
        drop_day = NULL
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND o.version = 1
        AND o.state = 'completed' AND o.replay_until_us > c.now_us
    RETURNING l.token, l.drop_day
), dropped AS (
    DELETE FROM idempotency_gateway.response r
    USING changed ch
    WHERE r.token = ch.token AND r.drop_day = ch.drop_day
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}
FROM clock c LEFT JOIN locked o ON true
