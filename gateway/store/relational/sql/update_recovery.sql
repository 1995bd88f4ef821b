-- no row of the table: the doubt is not over; check again later
UPDATE recovery SET check_us = ? WHERE id = ?
