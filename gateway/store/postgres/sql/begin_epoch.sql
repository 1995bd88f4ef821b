-- no row: what gateways wrote down about memories that were lost; no token up to this one is given to anybody
--
-- Others draw tokens meanwhile. So the sequence is never set to what they may be beyond already: up to there it is drawn from,
-- which cannot go back, and only where that is far ahead it is set. Whoever says this holds the lock for it, or two of these
-- would each set what they saw.
WITH advanced AS MATERIALIZED (
    SELECT CASE
        WHEN $2::bigint - t.last_value > {tokens_drawn_max} THEN setval('idempotency_gateway.token', $2::bigint)
        -- One more, for a sequence that nobody has drawn from is at its first token as well.
        ELSE (SELECT max(nextval('idempotency_gateway.token')) FROM generate_series(t.last_value, $2::bigint))
    END AS token
    FROM idempotency_gateway.token t
    WHERE t.last_value <= $2::bigint
)
UPDATE idempotency_gateway.epoch SET memo = $1 WHERE (SELECT count(token) FROM advanced) >= 0
