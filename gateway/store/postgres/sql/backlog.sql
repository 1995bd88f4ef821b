-- name: sample_backlog
-- No row of the table: what `select_backlog` counts, in $1 percent of the pages of the table.
SELECT d.route, coalesce(d.reason, ''), count(*), sum(d.request_bytes)::BIGINT
FROM idempotency_gateway.delivery AS d TABLESAMPLE SYSTEM ($1::REAL)
WHERE d.service = $2::TEXT AND (d.is_accepted OR d.reason IS NOT NULL)
GROUP BY 1, 2

-- name: delivery_bytes
-- No row of the table: the size of the table of deliveries.
SELECT pg_relation_size('idempotency_gateway.delivery') AS size_bytes
