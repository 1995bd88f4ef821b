-- completed --retire--> tombstone (the replay window is over)
-- released | tombstone --collect--> absent (the key is no longer remembered)
-- claimed --lapse--> in_doubt (a lapse that the walk over the tokens did not see)
--
-- A state that time alone does not end stays, whatever is written as the time at which it is due.
--
-- `due_us` may be late by the slack, so the scan goes that much further. Who is locked is left for the next pass. A retired
-- answer stays where it is until its partition leaves: nobody reads it any more.
WITH turn AS MATERIALIZED (
    -- What time has changed is true whether or not it is written down: no flush at commit.
    SELECT pg_try_advisory_xact_lock({sweep_lock}) AS mine, set_config('synchronous_commit', 'off', true)
), clock AS MATERIALIZED (
    SELECT {now} AS now_us
), due AS MATERIALIZED (
    SELECT o.operation_id, o.state, o.replay_until_us, o.remember_until_us
    FROM idempotency_gateway.operation o
    WHERE (SELECT mine FROM turn)
        AND o.due_us <= (SELECT now_us FROM clock) + {due_slack_us}
        AND o.version = {record_version}
        AND {due_us(o)} <= (SELECT now_us FROM clock)
    ORDER BY o.due_us
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
), lapsed AS (
    UPDATE idempotency_gateway.operation o SET
        state = 'in_doubt',
        doubt = 'lapsed',
        due_us = NULL,
        attention_us = coalesce(o.attention_us, c.now_us)
    FROM due d CROSS JOIN clock c
    WHERE o.operation_id = d.operation_id AND d.state = 'claimed'
    RETURNING o.route, o.operation_id
), retired AS (
    UPDATE idempotency_gateway.operation o SET
        state = 'tombstone',
        replay_until_us = 0,
        due_us = o.remember_until_us,
        drop_day = NULL
    FROM due d CROSS JOIN clock c
    WHERE o.operation_id = d.operation_id AND d.state = 'completed' AND NOT {is_absent(d)}
    RETURNING 1
), collected AS (
    DELETE FROM idempotency_gateway.operation o
    USING due d CROSS JOIN clock c
    WHERE o.operation_id = d.operation_id AND {is_absent(d)}
    RETURNING 1
)
SELECT
    (SELECT count(*) FROM lapsed) AS lapsed,
    ARRAY(SELECT l.route FROM lapsed l ORDER BY l.operation_id) AS routes,
    ARRAY(SELECT l.operation_id FROM lapsed l ORDER BY l.operation_id) AS operation_ids,
    (SELECT count(*) FROM retired) AS retired,
    (SELECT count(*) FROM collected) AS collected
