-- no row of the table: one sweeper at a time, and a dead one's turn ends by itself
UPDATE sweeper SET owner = ?1, until_us = ?2 WHERE one = 1 AND (owner = ?1 OR until_us <= ?3)
