-- no row of the table: the last audits of an operation, latest first
SELECT at_us, event, token, who, why FROM audit WHERE id = ? ORDER BY row DESC LIMIT ?
