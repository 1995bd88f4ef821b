-- no row of the table: the sink gets its events again
DELETE FROM suspension WHERE service = ? AND sink = ?
