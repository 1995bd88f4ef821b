-- no row of the table: a gateway runs
UPDATE gateway SET seen_us = ?2 WHERE id = ?1
