-- no row of the table: a pause is being ended, from now on or for longer
UPDATE pause SET resumed_us = coalesce(resumed_us, ?3) WHERE service = ?1 AND operation = ?2
