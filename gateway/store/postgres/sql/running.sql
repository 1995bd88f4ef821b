-- What other gateways serve that run. A time ahead of the clock is from before it was set back.
SELECT DISTINCT g.service, o.operation
FROM idempotency_gateway.gateway g CROSS JOIN LATERAL unnest(g.operations) AS o (operation)
WHERE g.gateway_id <> $2 AND g.seen_us BETWEEN {now} - {running_us} AND {now}
