-- name: complete
-- claimed | in_doubt --complete--> completed (fenced: token and attempt id)
-- released, by a disprove --complete--> completed (fenced: token and attempt id)
--
-- What is kept is left alone, for the way of all others. A day without a partition fails the whole statement, which is then repeated. `changed` are ordinals of the input; with
-- the last argument those records are not returned, because their callers have them.
WITH input AS MATERIALIZED (
    -- A value that is equal for all was sent once, and a column of nulls not at all: `unnest` makes both null.
    SELECT
        i.for_id, i.for_token, i.for_attempt_id,
        coalesce(i.replay_us, ($5::bigint[])[1]) AS replay_us,
        coalesce(i.remember_us, ($6::bigint[])[1]) AS remember_us,
        coalesce(i.new_status, ($7::smallint[])[1]) AS new_status,
        i.new_resource, i.new_api_version, i.new_sealed_by, i.ordinal
    FROM unnest(
        $2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::smallint[], $8::bytea[], $9::bytea[],
        $10::text[]
    ) WITH ORDINALITY AS i (
        for_id, for_token, for_attempt_id, replay_us, remember_us, new_status, new_resource, new_api_version, new_sealed_by,
        ordinal
    )
    ORDER BY for_id
), locked AS MATERIALIZED (
    SELECT i.*, {record}
    FROM input i CROSS JOIN LATERAL (
        SELECT {record} FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id FOR NO KEY UPDATE
    ) o
), clock AS MATERIALIZED (
    -- Read the clock when every lock is held, so that it is later than every change that was waited for.
    SELECT {now} AS now_us FROM (SELECT count(*) FROM locked) locks
), changed AS (
    UPDATE idempotency_gateway.operation o SET
        state = 'completed',
        last_event = 'complete',
        carried_us = NULL,
        lease_until_us = 0,
        lease_us = 0,
        replay_until_us = c.now_us + l.replay_us,
        remember_until_us = c.now_us + l.remember_us,
        completed_us = c.now_us,
        -- Kept while it is within the slack, because it is indexed.
        due_us = CASE
            WHEN o.due_us BETWEEN c.now_us + l.replay_us AND c.now_us + l.replay_us + {due_slack_us} THEN o.due_us
            ELSE c.now_us + l.replay_us
        END,
        attention_us = NULL,
        doubt = NULL,
        resolution_id = NULL,
        status = l.new_status,
        resource = coalesce(l.new_resource, o.resource),
        api_version = l.new_api_version,
        sealed_by = CASE
            WHEN l.new_sealed_by IS NULL OR o.sealed_by = l.new_sealed_by THEN o.sealed_by
            WHEN o.sealed_by IS NULL THEN l.new_sealed_by
            ELSE (
                SELECT string_agg(DISTINCT k.id COLLATE "C", ' ' ORDER BY k.id COLLATE "C")
                FROM unnest(string_to_array(o.sealed_by || ' ' || l.new_sealed_by, ' ')) AS k (id)
            )
        END,
        drop_day = idempotency_gateway.drop_day(c.now_us, l.replay_us)
    FROM locked l CROSS JOIN clock c
    WHERE o.operation_id = l.operation_id AND l.version BETWEEN {record_versions}
        AND l.token = l.for_token AND l.attempt_id = l.for_attempt_id
        AND NOT l.is_kept
        AND (
            l.state IN ('claimed', 'in_doubt')
            OR {is_released(l, c)} AND l.last_event = 'disprove'
        )
    RETURNING o.token, o.drop_day, l.ordinal
), stored AS (
    INSERT INTO idempotency_gateway.response (token, drop_day, reason, headers, body)
    SELECT
        ch.token, ch.drop_day, coalesce(($11::bytea[])[ch.ordinal], ($11::bytea[])[1]), ($12::bytea[])[ch.ordinal],
        ($13::bytea[])[ch.ordinal]
    FROM changed ch
){events}, raised AS (
    UPDATE idempotency_gateway.witness w SET number = w.number + 1
    WHERE w.link = {link}::uuid AND EXISTS (SELECT FROM changed)
    RETURNING w.number
)
SELECT c.now_us, (SELECT coalesce(array_agg(ch.ordinal), '{}') FROM changed ch) AS changed, {record}, (SELECT r.number FROM raised r) AS witness
FROM clock c LEFT JOIN (
    SELECT l.* FROM locked l WHERE NOT $14 OR NOT EXISTS (SELECT FROM changed ch WHERE ch.ordinal = l.ordinal)
) o ON true
