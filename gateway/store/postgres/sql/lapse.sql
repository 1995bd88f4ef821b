-- claimed --lapse--> in_doubt (the lease is over)
--
-- A claim whose lease ends later than any that begins now is of a time before the clock was set back: it ends no later than
-- those, and stays claimed until then.
--
-- Walks the claims in the order of their tokens from where the last walk ended, and looks at those that were renewed. The
-- walk ends before the first claim that must be looked at again, and before what may still be followed by a lower token
-- of a statement that has not committed: after the last token of which that is known ($4). When a claim was made does not
-- tell, for the clock may have been set since. Nor does it wait for ever for a claim that a newer program wrote, and that
-- only such a one may end: the statement for what is expired comes to it later.
WITH turn AS MATERIALIZED (
    -- What time has changed is true whether or not it is written down: no flush at commit.
    SELECT pg_try_advisory_xact_lock({sweep_lock}) AS mine, set_config('synchronous_commit', 'off', true)
), start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us
    FROM turn t JOIN idempotency_gateway.upkeep u ON t.mine
), young AS MATERIALIZED (
    SELECT o.*
    FROM start s CROSS JOIN LATERAL (
        SELECT operation_id, token, state, lease_until_us, attention_us, version
        FROM idempotency_gateway.operation
        WHERE token > s.passed_token
        ORDER BY token
        LIMIT $3::bigint
    ) o
), candidate AS MATERIALIZED (
    SELECT y.operation_id
    FROM young y CROSS JOIN start s
    WHERE y.state = 'claimed' AND y.version = {record_version}
        AND (y.lease_until_us <= s.now_us OR y.lease_until_us > s.now_us + {lease_us_max})
    UNION
    SELECT o.operation_id
    FROM start s CROSS JOIN LATERAL (
        SELECT operation_id, lease_until_us
        FROM idempotency_gateway.operation
        WHERE attention_us IS NOT NULL AND state = 'claimed' AND version = {record_version}
    ) o
    WHERE o.lease_until_us <= s.now_us OR o.lease_until_us > s.now_us + {lease_us_max}
    LIMIT $2::bigint
), due AS MATERIALIZED (
    SELECT o.operation_id, o.lease_until_us
    FROM (SELECT operation_id FROM candidate ORDER BY operation_id) d CROSS JOIN start s CROSS JOIN LATERAL (
        SELECT operation_id, lease_until_us
        FROM idempotency_gateway.operation o
        WHERE o.operation_id = d.operation_id AND o.state = 'claimed'
            AND (o.lease_until_us <= s.now_us OR o.lease_until_us > s.now_us + {lease_us_max})
            AND o.version = {record_version}
        FOR NO KEY UPDATE SKIP LOCKED
    ) o
), lapsed AS (
    UPDATE idempotency_gateway.operation o SET
        state = 'in_doubt',
        doubt = 'lapsed',
        due_us = NULL,
        attention_us = coalesce(o.attention_us, s.now_us)
    FROM due d CROSS JOIN start s
    WHERE o.operation_id = d.operation_id AND d.lease_until_us <= s.now_us
    RETURNING o.token, o.route, o.operation_id
), shortened AS (
    UPDATE idempotency_gateway.operation o SET
        first_claimed_us = least(o.first_claimed_us, s.now_us),
        claimed_us = least(o.claimed_us, s.now_us),
        lease_until_us = s.now_us + {lease_us_max},
        attention_us = coalesce(o.attention_us, s.now_us)
    FROM due d CROSS JOIN start s
    WHERE o.operation_id = d.operation_id AND d.lease_until_us > s.now_us
    RETURNING o.token
), held AS MATERIALIZED (
    SELECT coalesce(min(y.token), 9223372036854775807) AS token
    FROM young y CROSS JOIN start s
    WHERE y.token > $4::bigint
        OR y.state = 'claimed' AND y.attention_us IS NULL
            AND y.token NOT IN (SELECT token FROM lapsed UNION ALL SELECT token FROM shortened)
            -- A newer program has as long for its own as the longest lease.
            AND (
                y.version = {record_version}
                OR y.lease_until_us BETWEEN s.now_us - {lease_us_max} AND s.now_us + {lease_us_max}
            )
), moved AS (
    UPDATE idempotency_gateway.upkeep u SET passed_token = p.token
    FROM (SELECT max(y.token) AS token FROM young y CROSS JOIN held h WHERE y.token < h.token) p
    WHERE p.token > u.passed_token
    RETURNING 1
)
SELECT
    t.mine,
    (SELECT count(*) FROM lapsed) AS lapsed,
    ARRAY(SELECT l.route FROM lapsed l ORDER BY l.operation_id) AS routes,
    ARRAY(SELECT l.operation_id FROM lapsed l ORDER BY l.operation_id) AS operation_ids,
    (SELECT count(*) FROM shortened) AS shortened,
    (SELECT count(*) FROM young) >= $3::bigint AND EXISTS (SELECT FROM moved) AS more,
    (SELECT last_value FROM idempotency_gateway.token) AS drawn_token
FROM turn t
