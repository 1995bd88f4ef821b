-- no row of the table: who does which works of upkeep from now on. Another one's turn is free when its lease is over, and when it
-- ends later than any that begins now, because the clock was set back.
INSERT INTO turn (name, holder, until_us)
SELECT n.value, ?2, ?3 FROM json_each(?1) AS n WHERE TRUE
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_us = excluded.until_us
WHERE turn.holder = excluded.holder OR turn.until_us <= ?4 OR turn.until_us > excluded.until_us
RETURNING name
