-- no row of the table: witnesses to check, and whether they were raised since the last check
SELECT link, number > kept_number FROM witness WHERE check_us <= ? ORDER BY check_us LIMIT ?
