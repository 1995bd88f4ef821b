-- no row of the table: the event waits for an operator; nothing where it was leased or delivered again
UPDATE event SET is_dead = TRUE, lease_until_us = 0, why = ?6
WHERE service = ?1 AND sink = ?2 AND event_id = ?3 AND tries = ?4 AND redeliveries = ?5
