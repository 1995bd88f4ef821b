-- no row of the table: the event is published again later; nothing where it was leased or delivered again. The lease ends now,
-- which is when the pause begins. (The last condition is none of an index that has all waiting events of the sink.)
UPDATE event SET due_us = ?6, lease_until_us = ?8, why = ?7
WHERE service = ?1 AND sink = ?2 AND event_id = ?3 AND tries = ?4 AND redeliveries = ?5
    AND CASE WHEN is_dead THEN 1 ELSE 0 END = 0
