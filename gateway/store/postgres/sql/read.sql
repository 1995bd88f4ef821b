-- name: read
-- Reads records with their responses, in the order of the input. Bodies beyond a total size are left for another statement
-- (`is_left`).
-- Tombstones in narrow rows are left for `read_narrow`.
-- No row of the table: the caller settles what time has changed.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT
    c.now_us, {record}, {delivery}, r.reason AS phrase, r.headers,
    CASE WHEN coalesce(sum(octet_length(r.body)) OVER earlier, 0) < {read_bytes_max} THEN r.body END AS body,
    r.body IS NOT NULL AND coalesce(sum(octet_length(r.body)) OVER earlier, 0) >= {read_bytes_max} AS is_left
FROM clock c LEFT JOIN (
    unnest($2::uuid[]) WITH ORDINALITY AS i (for_id, place)
    CROSS JOIN LATERAL (
        SELECT {record}, o.drop_day FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id LIMIT 1
    ) o
) ON true LEFT JOIN LATERAL (
    SELECT {delivery} FROM idempotency_gateway.delivery d WHERE o.is_kept AND d.operation_id = o.operation_id LIMIT 1
) d ON true LEFT JOIN LATERAL (
    SELECT r.reason, r.headers, r.body
    FROM idempotency_gateway.response r
    WHERE o.state = 'completed' AND r.token = o.token AND r.drop_day = o.drop_day
    LIMIT 1
) r ON true
WINDOW earlier AS (ORDER BY i.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
