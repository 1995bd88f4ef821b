-- completed --purge--> tombstone (an operator dropped the answer)
--
-- The one answer that leaves by itself: an operator wants it gone now.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::text[], $4::text[])
    AS i (for_id, by_who, by_why)
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
    WHERE o.operation_id = l.operation_id AND l.version = {record_version}
        AND {is_completed(l)}
    RETURNING o.operation_id, l.token, l.drop_day, l.by_who, l.by_why
), dropped AS MATERIALIZED (
    SELECT idempotency_gateway.drop_response(ch.token, ch.drop_day) FROM changed ch
), audited AS (
    INSERT INTO idempotency_gateway.audit (operation_id, at_us, keep_until_us, token, event, who, why)
    SELECT ch.operation_id, c.now_us, c.now_us + {audit_keep_us}, ch.token, 'purge', ch.by_who, ch.by_why
    FROM changed ch CROSS JOIN clock c
    WHERE ch.by_who IS NOT NULL
), renewed AS (
    -- No copy from before counts.
    UPDATE idempotency_gateway.epoch SET generation = gen_random_uuid()::text WHERE EXISTS (SELECT FROM changed)
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $5::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT count(*) FROM dropped) AS changed, {record}, {witness}
FROM clock c LEFT JOIN locked o ON true
