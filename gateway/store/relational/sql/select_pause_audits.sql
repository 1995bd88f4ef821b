-- no row of the table: the last pauses of a service and their ends, the latest first
SELECT at_us, operation, is_resumed, who, why FROM pause_audit WHERE service = ? ORDER BY at_us DESC, row DESC LIMIT ?
