-- no row of the table: the pause is over
DELETE FROM pause WHERE service = ? AND operation = ?
