-- no row of the table: the doubt is not over
UPDATE recovery SET check_us = ? WHERE id = ?
