-- no row: what gateways wrote down about memories that were lost; no token up to this one is given to anybody
WITH advanced AS (
    SELECT setval('idempotency_gateway.token', greatest(last_value, $2::bigint)) FROM idempotency_gateway.token
)
UPDATE idempotency_gateway.epoch SET memo = $1 FROM advanced
