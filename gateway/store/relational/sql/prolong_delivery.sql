-- no row of the table: a pause does not count against the time in which an accepted operation has to be delivered
UPDATE delivery SET deliver_until_us = deliver_until_us + ?2, credited_us = ?3 WHERE row = ?1
