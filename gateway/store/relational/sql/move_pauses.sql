-- no row of the table: a pause that begins in the future, because the clock was set back, begins now
UPDATE pause SET since_us = ?1 WHERE since_us > ?1
