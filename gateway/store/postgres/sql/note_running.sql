-- A gateway that runs.
UPDATE idempotency_gateway.gateway SET seen_us = {now} WHERE gateway_id = $2
