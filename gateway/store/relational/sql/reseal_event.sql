-- no row of the table: an event under another key
UPDATE event SET content = ?, response = ?, why = ?
WHERE row = ? AND event_id = ? AND sink = ? AND content = ? AND response IS NOT DISTINCT FROM ? AND why = ?
