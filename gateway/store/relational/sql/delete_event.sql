-- no row of the table: the sink has the event
DELETE FROM event WHERE service = ? AND sink = ? AND event_id = ?
