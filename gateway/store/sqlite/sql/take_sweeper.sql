-- no row of the table: one sweeper at a time, and a dead one's turn ends by itself; also when the clock was set back, for
-- no turn lasts longer than one that begins now
UPDATE sweeper SET owner = ?1, until_us = ?2 WHERE one = 1 AND (owner = ?1 OR until_us <= ?3 OR until_us > ?2)
