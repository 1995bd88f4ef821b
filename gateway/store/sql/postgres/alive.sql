-- Counts the keys that are remembered now, by operation name.
SELECT o.operation, count(*) AS alive
FROM idempotency_gateway.operation o
WHERE o.operation = ANY($2::text[])
    AND (
        o.state IN ('claimed', 'in_doubt')
        OR greatest(o.replay_until_us, o.remember_until_us) > {now}
    )
GROUP BY o.operation
