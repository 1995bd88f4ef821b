-- no row of the table: why a sink is suspended, under another key
UPDATE suspension SET why = ? WHERE service = ? AND sink = ? AND why = ?
