-- no row of the table: keep the audit for longer, because its record still exists
UPDATE audit SET keep_until_us = ? WHERE row = ?
