-- Counts the keys that are remembered now, by service and operation name, and says until when the last of them is: null
-- where one is kept until it is resolved.
--
-- The name alone does not say whose a key is: the ids are derived again as `core.identity` does, as UUIDs of version 8,
-- from what the ids of a service's operation are derived from, up to the caller.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
SELECT
    a.place,
    count(*) AS keys,
    CASE
        WHEN NOT bool_or(o.state IN ('claimed', 'in_doubt')) THEN max(greatest(o.replay_until_us, o.remember_until_us))
    END AS until_us
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
WHERE NOT {is_absent(o)}
    AND uuid_send(o.operation_id)
        = set_byte(set_byte(d.bits, 6, (get_byte(d.bits, 6) & 15) | 128), 8, (get_byte(d.bits, 8) & 63) | 128)
GROUP BY a.place
