-- No row of the table: the records of one piece of the order of ids that are in one of the states, or have come there by the
-- clock alone.
--
-- Tells where the piece ends, null where all ends. A completed record without its answer is a tombstone.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), looked AS MATERIALIZED (
    SELECT * FROM idempotency_gateway.operation WHERE operation_id >= $2::uuid ORDER BY operation_id LIMIT $3::bigint
), horizon AS MATERIALIZED (
    SELECT (SELECT operation_id FROM looked ORDER BY operation_id OFFSET $3::bigint - 1) AS last_id
), found AS MATERIALIZED (
    SELECT o.*, r.reason, r.headers
    FROM clock c CROSS JOIN looked o LEFT JOIN LATERAL (
        SELECT r.reason, r.headers
        FROM idempotency_gateway.response r
        WHERE o.state = 'completed' AND r.token = o.token AND r.drop_day = o.drop_day
        LIMIT 1
    ) r ON true
    WHERE o.version = {record_version}
        AND o.first_claimed_us <= c.now_us - $4::bigint
        AND ($5::text[] IS NULL OR o.route = ANY($5::text[]))
        AND (
            o.state = ANY($6::text[])
            OR o.state = ANY($7::text[])
                AND ({due_us(o)} <= c.now_us OR o.state = 'completed' AND r.reason IS NULL)
        )
    ORDER BY o.operation_id
    LIMIT $8::bigint
)
SELECT c.now_us, h.last_id, {record}, o.reason, o.headers
FROM clock c CROSS JOIN horizon h LEFT JOIN found o ON true
ORDER BY o.operation_id
