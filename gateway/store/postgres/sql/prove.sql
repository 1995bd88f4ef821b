-- in_doubt --prove--> completed (fenced on the token that was read)
--
-- A claimed record whose lease is over is in doubt. Who said so is written down with it. A day without a partition fails the whole statement.
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::smallint[], $8::bytea[])
    WITH ORDINALITY AS i (for_id, for_token, by_resolution_id, replay_us, remember_us, new_status, new_location, ordinal)
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
        state = 'completed',
        last_event = 'prove',
        carries_doubt = false,
        lease_until_us = 0,
        replay_until_us = c.now_us + l.replay_us,
        remember_until_us = c.now_us + l.remember_us,
        completed_us = c.now_us,
        -- Left alone while right within the slack, because it is indexed.
        due_us = CASE
            WHEN o.due_us BETWEEN c.now_us + l.replay_us AND c.now_us + l.replay_us + {due_slack_us} THEN o.due_us
            ELSE c.now_us + l.replay_us
        END,
        attention_us = NULL,
        doubt = NULL,
        resolution_id = l.by_resolution_id,
        status = l.new_status,
        location = l.new_location,
        drop_day = idempotency_gateway.drop_day(c.now_us, l.replay_us)
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND l.version = {record_version}
        AND l.token = l.for_token
        AND {is_in_doubt(l)}
    RETURNING o.operation_id, o.token, o.drop_day, l.ordinal
), stored AS (
    INSERT INTO idempotency_gateway.response (token, drop_day, reason, headers, body)
    SELECT
        ch.token, ch.drop_day, ($9::bytea[])[ch.ordinal], ($10::bytea[])[ch.ordinal], ($11::bytea[])[ch.ordinal]
    FROM changed ch
), audited AS (
    INSERT INTO idempotency_gateway.audit (operation_id, at_us, keep_until_us, token, event, who, why)
    SELECT
        ch.operation_id, c.now_us, c.now_us + {audit_keep_us}, ch.token, 'prove',
        ($12::text[])[ch.ordinal], ($13::text[])[ch.ordinal]
    FROM changed ch CROSS JOIN clock c
    WHERE ($12::text[])[ch.ordinal] IS NOT NULL
), raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = $14::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT count(*) FROM changed) AS changed, {record}, {witness}
FROM clock c LEFT JOIN locked o ON true
