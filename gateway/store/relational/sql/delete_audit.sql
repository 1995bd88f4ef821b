-- no row of the table: an expired audit whose record is gone
DELETE FROM audit WHERE row = ?
