-- name: writers
-- No row of the table: the last token that was drawn, and every transaction then that may have drawn one or may grant.
--
-- Whoever claims or changes an operation locks the table in one of these modes before its snapshot is taken and before it draws
-- a token, until its changes can be seen.
SELECT
    -- A fresh sequence shows its first token before it is drawn.
    CASE WHEN d.is_called THEN d.last_value ELSE 0 END AS drawn,
    -- Not read before the token.
    ARRAY(
        SELECT l.virtualtransaction
        FROM pg_locks l
        WHERE l.relation = 'idempotency_gateway.operation'::regclass AND d.last_value IS NOT NULL
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
    ) AS writers
FROM idempotency_gateway.token d

-- name: kinds
-- No row of the table: the kinds with these digests.
SELECT k.digest, k.kind FROM idempotency_gateway.kind k WHERE k.digest = ANY($1::bytea[])

-- name: add_kinds
-- No row of the table: kinds that are not there yet, while there are not too many.
INSERT INTO idempotency_gateway.kind (
    digest, attempts, version, status, service, route, operation, last_event, key_id, recipe, api_version
)
SELECT i.*
FROM unnest(
    $1::bytea[], $2::integer[], $3::smallint[], $4::smallint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::bytea[], $11::bytea[]
) AS i
WHERE (SELECT count(*) FROM idempotency_gateway.kind) < {kinds_max}
ON CONFLICT (digest) DO NOTHING

-- name: move
-- completed --retire | purge--> tombstone: the rows of locked records become narrow. Grants nothing.
WITH gone AS (
    DELETE FROM idempotency_gateway.operation o
    USING unnest($1::uuid[]) AS i (for_id)
    WHERE o.operation_id = i.for_id
    RETURNING o.operation_id, o.token, o.completed_us, o.resource
)
INSERT INTO idempotency_gateway.tombstone (token, completed_us, kept_s, kind, operation_id, scope, fingerprint, resource)
SELECT g.token, g.completed_us, i.new_kept_s, i.new_kind, g.operation_id, i.new_scope, i.new_fingerprint, g.resource
FROM gone g JOIN unnest($1::uuid[], $2::integer[], $3::integer[], $4::uuid[], $5::uuid[])
    AS i (for_id, new_kept_s, new_kind, new_scope, new_fingerprint) ON i.for_id = g.operation_id
RETURNING operation_id

-- name: lock_tombstones
-- released | tombstone --erase--> absent, and what the table refuses: lock and read the tombstones among these operations, in the
-- transaction that found no other record of them.
WITH locked AS MATERIALIZED (
    SELECT t.operation_id
    FROM (SELECT i.for_id FROM unnest($1::uuid[]) AS i (for_id) ORDER BY i.for_id) i CROSS JOIN LATERAL (
        SELECT t.operation_id FROM idempotency_gateway.tombstone t WHERE t.operation_id = i.for_id FOR UPDATE
    ) t
)
SELECT {row}
FROM (SELECT DISTINCT l.operation_id FROM locked l) l CROSS JOIN LATERAL (
    SELECT {row}
    FROM idempotency_gateway.narrow o
    WHERE o.operation_id = l.operation_id
    ORDER BY o.remember_until_us DESC
    LIMIT 1
) o

-- name: collect_tombstones
-- tombstone --collect--> absent
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
), due AS MATERIALIZED (
    SELECT t.ctid AS place
    FROM idempotency_gateway.tombstone t
    WHERE (t.completed_us / 1000000 + t.kept_s) / 60 <= (SELECT c.now_us / 60000000 FROM clock c)
        AND t.completed_us + t.kept_s * 1000000::bigint <= (SELECT c.now_us FROM clock c)
        AND (SELECT k.version FROM idempotency_gateway.kind k WHERE k.kind = t.kind) BETWEEN {record_versions}
    ORDER BY (t.completed_us / 1000000 + t.kept_s) / 60
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_gateway.tombstone t USING due d WHERE t.ctid = d.place
RETURNING t.operation_id

-- name: read_narrow
-- No row of the table: the tombstones of these operations, which have no other record.
SELECT {record}
FROM unnest($1::uuid[]) AS i (for_id) CROSS JOIN LATERAL (
    SELECT {record}
    FROM idempotency_gateway.narrow o
    WHERE o.operation_id = i.for_id
    ORDER BY o.remember_until_us DESC
    LIMIT 1
) o
