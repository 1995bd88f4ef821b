-- no row of the table: what waited for the sink may be published at once
UPDATE event SET due_us = ?3 WHERE service = ?1 AND sink = ?2 AND NOT is_dead AND why <> '' AND due_us > ?3
