-- Reads records with their answers. No row of the table: what time has changed is settled by whoever reads.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT c.now_us, {record}, r.reason, r.headers, r.body
FROM clock c LEFT JOIN (
    unnest($2::uuid[]) AS i (for_id)
    CROSS JOIN LATERAL (
        SELECT * FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id LIMIT 1
    ) o
) ON true LEFT JOIN LATERAL (
    SELECT r.reason, r.headers, r.body
    FROM idempotency_gateway.response r
    WHERE o.state = 'completed' AND r.token = o.token AND r.drop_day = o.drop_day
    LIMIT 1
) r ON true
