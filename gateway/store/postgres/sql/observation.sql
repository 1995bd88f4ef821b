-- name: select_observations
-- No row of the table: the oldest observations of each of these operations.
SELECT o.entry, o.route, o.began_us, o.operation_id, o.content, o.seen
FROM unnest($2::uuid[]) AS w (operation_id) CROSS JOIN LATERAL (
    SELECT *
    FROM idempotency_gateway.observation o
    WHERE o.service = $1::text AND o.operation_id = w.operation_id
    ORDER BY o.began_us, o.entry
    LIMIT $3::bigint
) o
ORDER BY o.began_us, o.entry

-- name: select_observed_contents
-- No row of the table: the operations that were observed with one of these contents since then, and when last.
SELECT o.content, o.operation_id, o.last_us
FROM unnest($2::bytea[]) AS w (content) CROSS JOIN LATERAL (
    SELECT o.content, o.operation_id, max(o.began_us) AS last_us
    FROM idempotency_gateway.observation o
    WHERE o.service = $1::text AND o.content = w.content AND o.began_us >= $3::bigint
    GROUP BY o.content, o.operation_id
    LIMIT $4::bigint
) o

-- name: save_observations
-- No row of the table: what was seen of requests, or what is thought of them by now; some of the old ones go. Losing the
-- last of them in a crash loses no key, so nothing is flushed. Whether one was rekeyed is known at once.
WITH settings AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), forgotten AS (
    DELETE FROM idempotency_gateway.observation o
    WHERE o.entry = ANY (ARRAY(
        SELECT p.entry
        FROM idempotency_gateway.observation p
        WHERE p.began_us < $12::bigint
        ORDER BY p.began_us
        LIMIT $13::bigint
        FOR UPDATE SKIP LOCKED
    ))
)
INSERT INTO idempotency_gateway.observation (
    service, entry, route, operation_id, began_us, content, seen, verdict, is_refused, is_repeat, is_rekeyed
)
SELECT $1::text, n.*
FROM settings, unnest(
    $2::uuid[], $3::text[], $4::uuid[], $5::bigint[], $6::bytea[], $7::bytea[], $8::text[],
    $9::boolean[], $10::boolean[], $11::boolean[]
) AS n (entry, route, operation_id, began_us, content, seen, verdict, is_refused, is_repeat, is_rekeyed)
ORDER BY n.entry
ON CONFLICT (entry) DO UPDATE
SET verdict = excluded.verdict, is_refused = excluded.is_refused, is_repeat = excluded.is_repeat

-- name: count_observations
-- No row of the table: the observations of a route, or of all, by what was found.
SELECT
    o.route, o.verdict, o.is_refused, count(*) AS number,
    count(*) FILTER (WHERE o.is_repeat) AS repeats, count(*) FILTER (WHERE o.is_rekeyed) AS rekeyed
FROM idempotency_gateway.observation o
WHERE o.service = $1::text AND ($2::text IS NULL OR o.route = $2::text)
GROUP BY o.route, o.verdict, o.is_refused
ORDER BY o.route, o.verdict, o.is_refused

-- name: select_observed_operations
-- No row of the table: operations with this finding, the latest first; one may come several times.
SELECT o.operation_id
FROM idempotency_gateway.observation o
WHERE o.service = $1::text AND o.route = $2::text AND o.verdict = $3::text AND o.is_refused = $4::boolean
    AND o.operation_id IS NOT NULL
ORDER BY o.began_us DESC
LIMIT $5::bigint
