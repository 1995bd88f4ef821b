-- No row of the table: what is in doubt in one piece of the order of ids, and with the last argument only what nobody recovers
-- and was not put off.
--
-- It is what is listed for attention, and what the walk for lapsed claims has yet to reach: that is looked for among the
-- oldest claims, as many as a tally looks at. Tells where the piece ends, null where all ends.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
), listed AS MATERIALIZED (
    SELECT *
    FROM idempotency_gateway.operation
    WHERE attention_us IS NOT NULL AND operation_id >= $2::uuid
    ORDER BY operation_id
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
    WHERE o.attention_us IS NULL AND {is_in_doubt(o)}
        AND o.operation_id >= $2::uuid AND (h.last_id IS NULL OR o.operation_id <= h.last_id)
), found AS MATERIALIZED (
    SELECT o.*
    FROM start s CROSS JOIN (
        SELECT * FROM listed
        UNION ALL
        SELECT o.*
        FROM unseen n CROSS JOIN LATERAL (
            SELECT * FROM idempotency_gateway.operation o WHERE o.operation_id = n.operation_id LIMIT 1
        ) o
    ) o
    WHERE o.version = {record_version}
        AND {is_in_doubt(o)}
        AND o.first_claimed_us <= s.now_us - $4::bigint
        AND ($5::text[] IS NULL OR o.route = ANY($5::text[]))
        AND (NOT $6::boolean OR NOT EXISTS (
            SELECT
            FROM idempotency_gateway.recovery r
            WHERE r.operation_id = o.operation_id AND r.token = o.token
                AND greatest(r.held_until_us, r.put_off_until_us) > s.now_us
        ))
    ORDER BY o.operation_id
    LIMIT $7::bigint
)
SELECT s.now_us, h.last_id, {record}, NULL::bytea AS reason, NULL::bytea AS headers
FROM start s CROSS JOIN horizon h LEFT JOIN found o ON true
ORDER BY o.operation_id
