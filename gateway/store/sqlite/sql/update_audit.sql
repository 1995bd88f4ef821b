-- no row of the table: its record is still there
UPDATE audit SET keep_until_us = ? WHERE row = ?
