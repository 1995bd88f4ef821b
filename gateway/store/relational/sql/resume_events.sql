-- no row of the table: what waits for the sink may be published at once, also what a clock wrote before it was set back
UPDATE event SET due_us = ?3 WHERE service = ?1 AND sink = ?2 AND NOT is_dead AND due_us > ?3
