-- name: writers
-- No row of the table: the last token that was drawn, and every transaction then that may have drawn one or may grant.
SELECT
    -- A fresh sequence shows its first token before it is drawn.
    CASE WHEN d.is_called THEN d.last_value ELSE 0 END AS drawn,
    -- Not read before the token.
    ARRAY(
        SELECT l.virtualtransaction
        FROM pg_locks l
        WHERE l.relation = 'idempotency_gateway.operation'::regclass AND d.last_value IS NOT NULL
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.mode IN ('RowShareLock', 'RowExclusiveLock') AND l.pid <> pg_backend_pid()
    ) AS writers
FROM idempotency_gateway.token d

-- name: select_due
-- accepted --expire--> dead_letter, completed --retire--> tombstone, released | tombstone --collect--> absent, and a lapse that
-- the walk missed: the longest overdue first, whatever the state.
SELECT o.id
FROM ONLY idempotency_gateway.operation AS o
WHERE $1::TEXT IS NOT NULL AND o.check_us <= $2::BIGINT + {check_slack_us} AND o.due_us <= $2
    AND o.version BETWEEN {record_versions}
ORDER BY o.check_us
LIMIT $3

-- name: select_young
-- No row of the table: what the walk for lapsed claims has not come to yet.
SELECT o.id
FROM ONLY idempotency_gateway.operation AS o
WHERE $1::TEXT IS NOT NULL AND $2::BIGINT IS NOT NULL
    AND o.token > (SELECT e.passed_token FROM idempotency_gateway.epoch AS e)
ORDER BY o.token
LIMIT $3

-- name: select_lapsed
-- claimed --lapse--> in_doubt, and leases that begin in the future, because the clock was set back: among the next claims of
-- the walk, and those that were renewed.
SELECT y.id FROM (
    SELECT o.id, o.state, o.due_us, o.lease_until_us, o.lease_us, o.version FROM {walk} AS o
    UNION ALL
    SELECT o.id, o.state, o.due_us, o.lease_until_us, o.lease_us, o.version
    FROM ONLY idempotency_gateway.operation AS o
    WHERE o.watched = 'renewed'
) AS y
WHERE y.state = $1 AND (y.due_us <= $2::BIGINT OR y.lease_until_us > $2 + y.lease_us) AND y.version BETWEEN {record_versions}
LIMIT $3

-- name: select_ended
-- tombstone --collect--> absent: as `select_due`, the narrow ones.
SELECT o.id
FROM idempotency_gateway.narrow AS o
WHERE $1::TEXT IS NOT NULL AND o.remember_until_us / 60000000 <= $2::BIGINT / 60000000 AND o.remember_until_us <= $2
    AND o.version BETWEEN {record_versions}
ORDER BY o.remember_until_us / 60000000
LIMIT $3

-- name: narrow_operation
-- completed --retire--> tombstone: the record as a narrow row. Nobody may be under way whose statement misses it (`Horizon`).
WITH gone AS (
    DELETE FROM ONLY idempotency_gateway.operation AS o
    USING unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::text[], $6::bytea[]) AS i ({narrow}, id)
    WHERE o.id = i.id AND o.id = ANY($6)
    RETURNING {narrow of i}, o.id, o.version, o.token, o.remember_until_us, o.resource
)
INSERT INTO idempotency_gateway.narrow ({narrow}, id, version, token, remember_until_us, resource) SELECT * FROM gone

-- name: pass
-- No row of the table: advance the walk for lapsed claims.
--
-- The walk stops before the first claim that must be checked again, and behind the last token ($2) up to which every claim can
-- be seen, because a lower token may still appear behind a higher one. It does not wait for ever for a claim of a newer
-- program, which only such a program may end.
WITH young AS MATERIALIZED (
    SELECT o.token, o.state, o.watched, o.version, o.lease_until_us FROM {walk} AS o
), held AS MATERIALIZED (
    SELECT coalesce(min(y.token), 9223372036854775807) AS token
    FROM young AS y
    WHERE y.token > $2::BIGINT
        OR y.state = 'claimed' AND y.watched IS NULL
            -- A newer program has the time of the longest lease to sweep its own claims.
            AND (
                y.version BETWEEN {record_versions}
                OR y.lease_until_us BETWEEN $1::BIGINT - {lease_us_max} AND $1 + {lease_us_max}
            )
), moved AS (
    UPDATE idempotency_gateway.epoch AS e SET passed_token = p.token
    FROM (SELECT max(y.token) AS token FROM young AS y CROSS JOIN held AS h WHERE y.token < h.token) AS p
    WHERE p.token > e.passed_token
    RETURNING e.passed_token
)
SELECT (SELECT count(*) FROM young) >= {walk_records_max} AND EXISTS (SELECT FROM moved) AS is_more

-- name: select_doubt_ahead
-- No row of the table: operations in doubt whose lease begins in the future, because the clock was set back since: recovery
-- counts from its end. Of very many, a sweep looks at the first ones and at some anywhere: each would have to be read.
SELECT o.id FROM (
    (
        SELECT o.id, o.lease_until_us, o.lease_us, o.version
        FROM ONLY idempotency_gateway.operation AS o
        WHERE o.watched = $1
        ORDER BY o.id
        LIMIT {walk_records_max}
    )
    UNION ALL
    (
        SELECT o.id, o.lease_until_us, o.lease_us, o.version
        FROM ONLY idempotency_gateway.operation AS o
        WHERE o.watched = $1 AND o.id > (SELECT uuid_send(gen_random_uuid()))
        ORDER BY o.id
        LIMIT {walk_records_max}
    )
) AS o
WHERE o.lease_until_us > $2::BIGINT AND o.lease_until_us > $2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT $3

-- name: tally
-- In_doubt, and claimed --lapse--> in_doubt not yet swept: by route, with the earliest doubt.
SELECT o.route, count(*), min(coalesce(o.carried_us, o.lease_until_us))
FROM ONLY idempotency_gateway.operation AS o
WHERE o.watched = 'in_doubt'
GROUP BY o.route
UNION ALL
SELECT o.route, count(*), min(coalesce(o.carried_us, o.lease_until_us))
FROM idempotency_gateway.claimed AS o
WHERE o.due_us <= $1
GROUP BY o.route

-- name: select_horizon_stopped
-- No row of the table: the last of this many records after an id that are written as in doubt or as dead letters.
SELECT o.id FROM ONLY idempotency_gateway.operation AS o WHERE o.watched = $1 AND o.id > $2 ORDER BY o.id LIMIT 1 OFFSET $3

-- name: find_stopped
-- No row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with $7 only those whose recovery lease is free and that were not put off.
--
-- What the clock made so is found first, or a plan might go along all ids.
WITH passed AS MATERIALIZED (
    SELECT c.id FROM idempotency_gateway.claimed AS c WHERE c.state = $6 AND c.due_us <= $8::BIGINT
    UNION ALL
    SELECT a.id FROM ONLY idempotency_gateway.operation AS a
    WHERE $6 = 'accepted' AND a.state = 'accepted' AND a.check_us <= $8
)
SELECT {record}, NULL::BYTEA
FROM ONLY idempotency_gateway.operation AS o
WHERE o.id IN (
        SELECT w.id FROM ONLY idempotency_gateway.operation AS w WHERE w.watched = $5 AND w.id > $1 AND w.id <= $2
        UNION ALL
        SELECT p.id FROM passed AS p WHERE p.id > $1 AND p.id <= $2
    )
    AND o.version BETWEEN {record_versions} AND NOT (o.first_claimed_us > $3::BIGINT AND o.first_claimed_us <= $8)
    AND ($4::TEXT IS NULL OR o.route IN (SELECT jsonb_array_elements_text($4::TEXT::JSONB)))
    AND (NOT $7::BOOLEAN OR {may be probed})
ORDER BY o.id
LIMIT $9
