-- A gateway that has agreed. Those that were not seen for long are forgotten.
WITH forgotten AS (
    DELETE FROM idempotency_gateway.gateway WHERE gateway_id <> $2 AND seen_us < {now} - {forgotten_us}
)
INSERT INTO idempotency_gateway.gateway (gateway_id, service, operations, seen_us)
VALUES ($2, $3, $4::text[], {now})
ON CONFLICT (gateway_id) DO UPDATE
SET service = excluded.service, operations = excluded.operations, seen_us = excluded.seen_us
