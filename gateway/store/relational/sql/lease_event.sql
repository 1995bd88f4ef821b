-- no row of the table: nobody else publishes the event until the lease ends
UPDATE event SET due_us = ?4, tries = tries + 1 WHERE service = ?1 AND sink = ?2 AND event_id = ?3
