-- name: read
-- Reads records with their responses. Bodies beyond a total size are left for another statement (`is_left`).
-- No row of the table: the caller settles what time has changed.
SELECT c.now_us, q.* FROM (SELECT {now} AS now_us) AS c LEFT JOIN (
    SELECT
        {record},
        CASE WHEN coalesce(sum(octet_length(o.body)) OVER earlier, 0) < {read_bytes_max} THEN o.body END AS body,
        o.body IS NOT NULL AND coalesce(sum(octet_length(o.body)) OVER earlier, 0) >= {read_bytes_max} AS is_left
    FROM idempotency_gateway.operation AS o
    WHERE o.id = ANY($2::bytea[])
    WINDOW earlier AS (ORDER BY o.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS q ON true

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

-- name: advance_witness
-- No row of the table: raise the witness of a link, in the transaction of the changes that it stands for
UPDATE idempotency_gateway.witness SET number = number + 1 WHERE link = $2 RETURNING {now} AS now_us, number
