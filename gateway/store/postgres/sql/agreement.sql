-- name: recipes
-- The remembered operation names with recipe and routes.
SELECT service, operation, recipe, routes, is_current FROM idempotency_gateway.recipe

-- name: write_recipes
-- Operation names with recipe and routes, as remembered from now on.
INSERT INTO idempotency_gateway.recipe (service, operation, recipe, routes, is_current)
SELECT i.of_service, i.of_operation, i.new_recipe, i.new_routes, i.now_current
FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::boolean[])
    AS i (of_service, of_operation, new_recipe, new_routes, now_current)
ON CONFLICT (service, operation) DO UPDATE
SET recipe = excluded.recipe, routes = excluded.routes, is_current = excluded.is_current

-- name: running
-- What the other running gateways serve. A time in the future is from before the clock was set back.
SELECT DISTINCT g.service, o.operation
FROM idempotency_gateway.gateway g CROSS JOIN LATERAL unnest(g.operations) AS o (operation)
WHERE g.gateway_id <> $2 AND g.seen_us BETWEEN {now} - {running_us} AND {now}

-- name: write_gateway
-- A gateway whose configuration was accepted. Gateways not seen for long are forgotten, but not a member: until it was struck
-- off, it has to vouch for a promotion.
WITH forgotten AS (
    DELETE FROM idempotency_gateway.gateway WHERE gateway_id <> $2 AND seen_us < {now} - {forgotten_us} AND beat IS NULL
)
INSERT INTO idempotency_gateway.gateway (gateway_id, service, operations, host, seen_us, level, replay_us)
VALUES ($2, $3, $4::text[], $5, {now}, {level}, $6)
ON CONFLICT (gateway_id) DO UPDATE
SET
    service = excluded.service, operations = excluded.operations, seen_us = excluded.seen_us, replay_us = excluded.replay_us

-- name: older_gateways
-- The running gateways of programs of lower levels. A time in the future is from before the clock was set back.
SELECT g.gateway_id, g.host, g.level
FROM idempotency_gateway.gateway g
WHERE g.level < {level} AND g.seen_us >= {now} - {running_us}
ORDER BY g.host, g.gateway_id

-- name: note_running
-- A gateway that runs, and the longest replay window of its responses.
UPDATE idempotency_gateway.gateway SET seen_us = {now}, replay_us = $3 WHERE gateway_id = $2

-- name: note_stopped
-- A gateway that has stopped.
DELETE FROM idempotency_gateway.gateway WHERE gateway_id = $1

-- name: alive
-- Counts the keys that are remembered now, by service and operation name, and until when the last of them is kept: null if
-- one is kept until it is resolved.
--
-- A record has no service name, so its id is derived again as in `core.identity`, as a UUID of version 8, from the prefix
-- that the caller passes for each service and operation. A tombstone says whose it is, where its row is narrow.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), wide AS (
    SELECT
        a.place,
        coalesce(o.key_id, '') AS key_id,
        count(*) AS keys,
        bool_or(o.is_kept OR o.state IN ('claimed', 'in_doubt')) AS is_open,
        max(greatest(o.replay_until_us, o.remember_until_us)) AS until_us
    FROM clock CROSS JOIN unnest($2::text[], $3::bytea[]) WITH ORDINALITY AS a (operation, derivation, place)
        JOIN idempotency_gateway.operation o USING (operation)
        CROSS JOIN LATERAL (
            SELECT substring(
                sha256(
                    a.derivation
                    || int8send(length(o.scope_digest)::bigint) || o.scope_digest
                    || int8send(length(o.key_digest)::bigint) || o.key_digest
                ) FOR 16
            ) AS bits
        ) d
    WHERE NOT {is_absent(o, clock)}
        AND uuid_send(o.operation_id)
            = set_byte(set_byte(d.bits, 6, (get_byte(d.bits, 6) & 15) | 128), 8, (get_byte(d.bits, 8) & 63) | 128)
    GROUP BY 1, 2
), narrow AS (
    SELECT a.place, coalesce(o.key_id, '') AS key_id, count(*) AS keys, false AS is_open, max(o.remember_until_us) AS until_us
    FROM clock CROSS JOIN unnest($2::text[], $4::text[]) WITH ORDINALITY AS a (operation, of_service, place)
        JOIN idempotency_gateway.narrow o USING (operation, of_service)
    WHERE o.remember_until_us > clock.now_us
    GROUP BY 1, 2
)
SELECT
    e.place,
    e.key_id,
    sum(e.keys)::bigint AS keys,
    CASE WHEN NOT bool_or(e.is_open) THEN max(e.until_us) END AS until_us
FROM (SELECT * FROM wide UNION ALL SELECT * FROM narrow) e
GROUP BY e.place, e.key_id
