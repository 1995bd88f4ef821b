-- no row of the table: who does a work of upkeep from now on. Another one's turn is free when its lease is over, and when it ends
-- later than any that begins now, because the clock was set back.
INSERT INTO turn (name, holder, until_us) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET holder = ?2, until_us = ?3 WHERE turn.holder = ?2 OR turn.until_us <= ?4 OR turn.until_us > ?3
