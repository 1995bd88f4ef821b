-- no row of the table: a gateway that runs
UPDATE gateway SET seen_us = ?2 WHERE id = ?1
