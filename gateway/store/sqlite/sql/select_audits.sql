-- no row of the table: the last of what was done to an operation, the latest first
SELECT at_us, event, token, who, why FROM audit WHERE id = ? ORDER BY row DESC LIMIT ?
