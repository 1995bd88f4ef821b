-- no row of the table: who does which works of upkeep from now on. Another one's turn is free when its lease is over, and when it
-- ends later than any that begins now, because the clock was set back. Whoever has no turn writes nothing.
INSERT INTO turn (name, holder, until_us)
SELECT n.value, CAST(?2 AS {bytes}), CAST(?3 AS BIGINT) FROM {each of ?1} AS n
WHERE NOT EXISTS (
    SELECT 1 FROM turn AS t WHERE t.name = n.value AND t.holder <> ?2 AND t.until_us > ?4 AND t.until_us <= ?3
)
ORDER BY n.value
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us
RETURNING name
