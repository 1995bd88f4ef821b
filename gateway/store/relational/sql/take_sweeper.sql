-- no row of the table: one sweeper at a time. The turn of a dead one lapses, also if the clock was set back, because no
-- turn lasts longer than one that begins now.
UPDATE sweeper SET owner = ?1, until_us = ?2 WHERE one = 1 AND (owner = ?1 OR until_us <= ?3 OR until_us > ?2)
