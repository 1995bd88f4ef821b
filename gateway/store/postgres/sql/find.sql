-- name: find
-- No row of the table: the records in one piece, in order of id, that are in one of the states, or have reached one by the
-- clock alone.
--
-- Returns the last id of the piece, null for the last piece. A completed record without its response is a tombstone.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), piece AS MATERIALIZED (
    SELECT {record}, o.drop_day, o.due_us
    FROM (
        (
            SELECT {record}, o.drop_day, o.due_us
            FROM idempotency_gateway.operation o
            WHERE o.operation_id >= $2::uuid
            ORDER BY o.operation_id
            LIMIT $3::bigint
        )
        UNION ALL
        (
            SELECT {record}, o.drop_day, o.due_us
            FROM idempotency_gateway.narrow o
            WHERE $9::boolean AND o.operation_id >= $2::uuid
            ORDER BY o.operation_id
            LIMIT $3::bigint
        )
    ) o
    ORDER BY o.operation_id
    LIMIT $3::bigint
), horizon AS MATERIALIZED (
    SELECT (SELECT operation_id FROM piece ORDER BY operation_id OFFSET $3::bigint - 1) AS last_id
), found AS MATERIALIZED (
    SELECT {record}, {delivery}, r.reason AS phrase, r.headers
    FROM clock c CROSS JOIN piece o LEFT JOIN LATERAL (
        SELECT {delivery} FROM idempotency_gateway.delivery d WHERE o.is_kept AND d.operation_id = o.operation_id LIMIT 1
    ) d ON true LEFT JOIN LATERAL (
        SELECT r.reason, r.headers
        FROM idempotency_gateway.response r
        WHERE o.state = 'completed' AND r.token = o.token AND r.drop_day = o.drop_day
        LIMIT 1
    ) r ON true
    WHERE o.version BETWEEN {record_versions}
        AND NOT (o.first_claimed_us > c.now_us - $4::bigint AND o.first_claimed_us <= c.now_us)
        AND ($5::text[] IS NULL OR o.route = ANY($5::text[]))
        AND (
            o.state = ANY($6::text[])
            OR o.state = ANY($7::text[])
                AND ({due_us(o)} <= c.now_us OR o.state = 'completed' AND r.reason IS NULL)
        )
    ORDER BY o.operation_id
    LIMIT $8::bigint
)
SELECT c.now_us, h.last_id, {record}, {found_delivery}, o.phrase, o.headers
FROM clock c CROSS JOIN horizon h LEFT JOIN found o ON true
ORDER BY o.operation_id

-- name: find_in_doubt
-- No row of the table: the records in doubt in one piece, in order of id; with $6 only those whose recovery lease is free
-- and that were not put off.
--
-- These are records with `attention_us`, and lapsed claims that the walk has yet to reach. The latter are searched among the
-- oldest claims, as many as a tally reads. Returns the last id of the piece, null for the last piece.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
), listed AS MATERIALIZED (
    SELECT {record}
    FROM idempotency_gateway.operation o
    WHERE o.attention_us IS NOT NULL AND o.operation_id >= $2::uuid
    ORDER BY o.operation_id
    LIMIT $3::bigint
), horizon AS MATERIALIZED (
    SELECT (SELECT operation_id FROM listed ORDER BY operation_id OFFSET $3::bigint - 1) AS last_id
), unseen AS MATERIALIZED (
    SELECT o.operation_id
    FROM start s CROSS JOIN horizon h CROSS JOIN LATERAL (
        SELECT operation_id, state, lease_until_us, attention_us
        FROM idempotency_gateway.operation
        WHERE token > s.passed_token
        ORDER BY token
        LIMIT {unswept_claims_max}
    ) o
    WHERE o.attention_us IS NULL AND {is_in_doubt(o, s)}
        AND o.operation_id >= $2::uuid AND (h.last_id IS NULL OR o.operation_id <= h.last_id)
), found AS MATERIALIZED (
    SELECT {record}
    FROM start s CROSS JOIN (
        SELECT l.* FROM listed l
        UNION ALL
        SELECT {record}
        FROM unseen n CROSS JOIN LATERAL (
            SELECT {record} FROM idempotency_gateway.operation o WHERE o.operation_id = n.operation_id LIMIT 1
        ) o
    ) o
    WHERE o.version BETWEEN {record_versions}
        AND {is_in_doubt(o, s)}
        AND NOT (o.first_claimed_us > s.now_us - $4::bigint AND o.first_claimed_us <= s.now_us)
        AND ($5::text[] IS NULL OR o.route = ANY($5::text[]))
        AND (NOT $6::boolean OR NOT EXISTS (
            SELECT
            FROM idempotency_gateway.recovery r
            WHERE r.operation_id = o.operation_id AND r.token = o.token
                AND (
                    r.held_until_us > s.now_us AND r.held_until_us <= s.now_us + {recovery_lease_us_max}
                    OR r.asked_us <= s.now_us AND r.put_off_until_us > s.now_us
                )
        ))
    ORDER BY o.operation_id
    LIMIT $7::bigint
)
SELECT s.now_us, h.last_id, {record}, {delivery}, NULL::bytea AS phrase, NULL::bytea AS headers
FROM start s CROSS JOIN horizon h LEFT JOIN found o ON true LEFT JOIN LATERAL (
    SELECT {delivery} FROM idempotency_gateway.delivery d WHERE o.is_kept AND d.operation_id = o.operation_id LIMIT 1
) d ON true
ORDER BY o.operation_id

-- name: find_undelivered
-- No row of the table: the accepted records, and the dead letters, in one piece of the deliveries, in order of id; with $7
-- dead letters for this reason alone.
--
-- Returns the last id of the piece, null for the last piece.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), piece AS MATERIALIZED (
    SELECT d.operation_id, d.route, d.waits, d.reason, d.deliver_until_us
    FROM idempotency_gateway.delivery d
    WHERE d.operation_id >= $2::uuid
    ORDER BY d.operation_id
    LIMIT $3::bigint
), horizon AS MATERIALIZED (
    SELECT (SELECT operation_id FROM piece ORDER BY operation_id OFFSET $3::bigint - 1) AS last_id
), found AS MATERIALIZED (
    SELECT {record}
    FROM clock c CROSS JOIN piece y CROSS JOIN LATERAL (
        SELECT {record} FROM idempotency_gateway.operation o WHERE o.operation_id = y.operation_id LIMIT 1
    ) o
    WHERE y.waits IS NOT NULL
        AND ($5::text[] IS NULL OR y.route = ANY($5::text[]))
        AND CASE WHEN {reason_now(y, c)} IS NULL THEN 'accepted' ELSE 'dead_letter' END = ANY($6::text[])
        AND ($7::text IS NULL OR {reason_now(y, c)} = $7::text)
        AND o.version BETWEEN {record_versions}
        AND NOT (o.first_claimed_us > c.now_us - $4::bigint AND o.first_claimed_us <= c.now_us)
    ORDER BY y.operation_id
    LIMIT $8::bigint
)
SELECT c.now_us, h.last_id, {record}, {delivery}, NULL::bytea AS phrase, NULL::bytea AS headers
FROM clock c CROSS JOIN horizon h LEFT JOIN found o ON true LEFT JOIN LATERAL (
    SELECT {delivery} FROM idempotency_gateway.delivery d WHERE d.operation_id = o.operation_id LIMIT 1
) d ON true
ORDER BY o.operation_id

-- name: tally
-- Counts the operations in doubt by route: those with `attention_us`, and lapsed claims that the walk has yet to reach.
--
-- The search for the latter is short while sweeps run, and bounded otherwise: the oldest claims come first.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
), in_doubt AS (
    SELECT o.route, coalesce(o.carried_us, o.lease_until_us) AS since_us
    FROM idempotency_gateway.operation o CROSS JOIN start s
    WHERE o.attention_us IS NOT NULL AND {is_in_doubt(o, s)}
    UNION ALL
    SELECT o.route, coalesce(o.carried_us, o.lease_until_us) AS since_us
    FROM start s CROSS JOIN LATERAL (
        SELECT route, state, carried_us, lease_until_us, attention_us
        FROM idempotency_gateway.operation
        WHERE token > s.passed_token
        ORDER BY token
        LIMIT {unswept_claims_max}
    ) o
    WHERE o.attention_us IS NULL AND {is_in_doubt(o, s)}
)
SELECT d.route, count(*) AS found, greatest(max(s.now_us - d.since_us), 0) AS oldest_us, NULL::text AS keys
FROM in_doubt d CROSS JOIN start s
GROUP BY d.route
