-- no row of the table: counts that nobody looks at any more
DELETE FROM activity WHERE service = ?1 AND span_us = ?2 AND at_us = ?3 AND writer = ?4
