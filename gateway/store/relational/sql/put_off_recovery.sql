-- no row of the table: the last holder returns the recovery lease
UPDATE recovery SET held_until_us = 0, put_off_until_us = ?, asked_us = ?, finding = ? WHERE id = ? AND token = ? AND tries = ?
