-- name: read
-- Reads records with their responses. Bodies beyond a total size are left for another statement (`is_left`).
-- No row of the table: the caller settles what time has changed.
SELECT c.now_us, q.* FROM (SELECT {now} AS now_us) AS c LEFT JOIN (
    SELECT
        {record},
        CASE WHEN coalesce(sum(octet_length(r.body)) OVER earlier, 0) < {read_bytes_max} THEN r.body END AS body,
        r.body IS NOT NULL AND coalesce(sum(octet_length(r.body)) OVER earlier, 0) >= {read_bytes_max} AS is_left,
        CASE WHEN o.request_kept THEN (
            SELECT q FROM (SELECT {delivery of d} FROM idempotency_gateway.delivery AS d WHERE d.row = o.id) AS q
        ) END AS delivery,
        CASE WHEN o.kind IS NOT NULL THEN (
            SELECT q FROM (SELECT {kind} FROM idempotency_gateway.kind AS k WHERE k.kind = o.kind) AS q
        ) END AS shared
    FROM idempotency_gateway.operation AS o LEFT JOIN idempotency_gateway.response AS r ON o.body_kept AND {response}
    WHERE o.id = ANY($2::bytea[])
    WINDOW earlier AS (ORDER BY o.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS q ON true

-- name: insert_response
-- every row that leads to completed: the response bodies. A day without a partition fails the statement
INSERT INTO idempotency_gateway.response (token, drop_day, body)
SELECT o.token, {drop_day}, i.body
FROM unnest($1::bytea[], $2::bytea[]) AS i (body, id) JOIN ONLY idempotency_gateway.operation AS o ON o.id = i.id

-- name: delete_response
-- completed --purge--> tombstone: the response bodies. Others are dropped with their partition
DELETE FROM idempotency_gateway.response AS r USING ONLY idempotency_gateway.operation AS o
WHERE o.id = ANY($1::bytea[]) AND {response}

-- name: draw_tokens
-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: tokens, in order.
SELECT nextval('idempotency_gateway.token') FROM generate_series(1, $1::integer)

-- name: clock
-- No row of the table: the store's clock.
SELECT {now} AS now_us

-- name: delete_gateways
-- No row of the table: a gateway that has stopped, and those not seen for long; but not a member: until it was struck off, it has
-- to vouch for a promotion.
DELETE FROM idempotency_gateway.gateway WHERE id = $1 OR seen_us < $2 AND beat IS NULL

-- name: behind_locks
-- Every row of a locked record: the clock, later than every change that was waited for; whether a record that was not found has
-- moved; and tokens for those that draw one.
SELECT
    {now} AS now_us,
    EXISTS (SELECT FROM idempotency_gateway.narrow AS n WHERE n.id = ANY($2::BYTEA[])) AS has_moved,
    ARRAY(SELECT nextval('idempotency_gateway.token') FROM generate_series(1, $3::INTEGER)) AS drawn
