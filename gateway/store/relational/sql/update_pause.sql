-- no row of the table: how far the end of a pause got
UPDATE pause SET place_us = ?3, place_row = ?4 WHERE service = ?1 AND operation = ?2
