-- no row of the table: the end of a pause begins anew; one that failed before it came to its own end has paid less
UPDATE pause SET resumed_us = ?3, place_us = 9223372036854775807, place_row = ?4 WHERE service = ?1 AND operation = ?2
