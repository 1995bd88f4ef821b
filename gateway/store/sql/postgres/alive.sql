-- Counts the keys that are remembered now, by operation name.
--
-- Where it is given what the ids of a service are derived from, up to the caller, only that service's are counted: their ids
-- are derived again as `core.identity` does, as UUIDs of version 8.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT o.operation, count(*) AS alive
FROM clock CROSS JOIN unnest($2::text[], $3::bytea[]) AS a (operation, derivation)
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
WHERE NOT {is_absent(o)}
    AND (
        a.derivation IS NULL
        OR uuid_send(o.operation_id)
            = set_byte(set_byte(d.bits, 6, (get_byte(d.bits, 6) & 15) | 128), 8, (get_byte(d.bits, 8) & 63) | 128)
    )
GROUP BY o.operation
