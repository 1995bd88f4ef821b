-- Counts what is in doubt, by route: what is listed for attention, and what the walk for lapsed claims has yet to reach.
--
-- The walk is short when sweeps run, and bounded when they do not: the oldest claims come first.
WITH start AS MATERIALIZED (
    SELECT u.passed_token, {now} AS now_us FROM idempotency_gateway.upkeep u
), in_doubt AS (
    SELECT o.route, o.claimed_us
    FROM idempotency_gateway.operation o CROSS JOIN start s
    WHERE o.attention_us IS NOT NULL AND {is_in_doubt(o)}
    UNION ALL
    SELECT o.route, o.claimed_us
    FROM start s CROSS JOIN LATERAL (
        SELECT route, state, claimed_us, lease_until_us, attention_us
        FROM idempotency_gateway.operation
        WHERE token > s.passed_token
        ORDER BY token
        LIMIT {unswept_claims_max}
    ) o
    WHERE o.attention_us IS NULL AND {is_in_doubt(o)}
)
SELECT d.route, count(*) AS in_doubt, max(s.now_us - d.claimed_us) AS oldest_us
FROM in_doubt d CROSS JOIN start s
GROUP BY d.route
