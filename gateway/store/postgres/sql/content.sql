-- name: content_locks
-- No row of the table: lock contents until the end of the transaction, in the order of the array.
SELECT pg_advisory_xact_lock(i.lock_key) FROM unnest($1::bigint[]) AS i (lock_key)

-- name: content_holders
-- No row of the table: of each request whether its operation has a record, and another operation that holds its content
-- (`lifecycle.holds_content`), the one that claimed it first.
--
-- A state of a newer program counts as one in which the operation may still have an effect.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT
    c.now_us,
    EXISTS (SELECT FROM idempotency_gateway.operation o WHERE o.operation_id = i.for_id)
        OR NOT {has_no_tombstone(i, c)} AS is_known,
    (
        SELECT h.operation_id
        FROM idempotency_gateway.content h CROSS JOIN LATERAL (
            SELECT o.digest, o.state, o.replay_until_us, o.remember_until_us
            FROM idempotency_gateway.remembered o
            WHERE o.operation_id = h.operation_id
            LIMIT 1
        ) o
        WHERE h.digest = i.of_digest AND h.operation_id <> i.for_id
            -- A tombstone has the first bytes.
            AND o.digest = CASE o.state WHEN 'tombstone' THEN substr(h.fingerprint, 1, length(o.digest)) ELSE h.fingerprint END
            AND (
                o.state NOT IN ('released', 'completed', 'tombstone')
                OR h.until_us > c.now_us AND ({is_completed(o, c)} OR {is_tombstone(o, c)})
            )
        ORDER BY h.until_us, h.operation_id
        LIMIT 1
    ) AS holder_id
FROM clock c CROSS JOIN unnest($2::uuid[], $3::bytea[]) WITH ORDINALITY AS i (for_id, of_digest, ordinal)
ORDER BY i.ordinal

-- name: hold_contents
-- No row of the table: operations claimed these contents.
INSERT INTO idempotency_gateway.content (operation_id, digest, fingerprint, until_us, check_us)
SELECT i.for_id, i.of_digest, i.new_fingerprint, i.new_until_us, i.new_until_us
FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::bigint[]) AS i (for_id, of_digest, new_fingerprint, new_until_us)
ON CONFLICT (digest, operation_id) DO UPDATE
SET fingerprint = excluded.fingerprint, until_us = excluded.until_us, check_us = excluded.check_us
