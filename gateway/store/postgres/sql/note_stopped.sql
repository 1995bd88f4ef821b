-- A gateway that has stopped.
DELETE FROM idempotency_gateway.gateway WHERE gateway_id = $1
