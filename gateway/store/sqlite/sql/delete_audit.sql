-- no row of the table: its time and its record's are over
DELETE FROM audit WHERE row = ?
