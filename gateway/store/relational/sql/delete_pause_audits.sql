-- no row of the table: pauses and their ends of long ago
DELETE FROM pause_audit WHERE service = ? AND at_us < ?
