-- name: take_turns
-- No row of the table: who does which work of upkeep. Returns the turns that this gateway has now, for $4.
--
-- A turn is free when its lease is over, and when it ends later than any that begins now, because the clock was set back.
-- Whoever has none writes nothing. A commit that a crash undoes is made again.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
), free AS MATERIALIZED (
    SELECT w.wanted
    FROM unnest($3::text[]) AS w (wanted) CROSS JOIN clock c
    WHERE NOT EXISTS (
        SELECT
        FROM idempotency_gateway.turn t
        WHERE t.name = w.wanted AND t.holder <> $2 AND t.until_us > c.now_us AND t.until_us <= c.now_us + $4::bigint
    )
)
INSERT INTO idempotency_gateway.turn AS t (name, holder, until_us)
SELECT f.wanted, $2, c.now_us + $4::bigint FROM free f CROSS JOIN clock c ORDER BY f.wanted
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us
WHERE t.holder = excluded.holder OR t.until_us <= excluded.until_us - $4::bigint OR t.until_us > excluded.until_us
RETURNING t.name

-- name: leave_turns
-- No row of the table: a gateway has no turn any more; those that nobody wanted for long are forgotten
DELETE FROM idempotency_gateway.turn t WHERE t.holder = $2 OR t.until_us < {now} - {forgotten_us}
