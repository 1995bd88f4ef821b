-- no row of the table: a pause is being ended, and counts up to now; where that has rested since ?4, it begins anew with those
-- that it came to first, because they have waited since
UPDATE pause SET resumed_us = ?3,
    place_us = CASE WHEN coalesce(resumed_us, 0) < ?4 THEN 9223372036854775807 ELSE place_us END,
    place_row = CASE WHEN coalesce(resumed_us, 0) < ?4 THEN ?5 ELSE place_row END
WHERE service = ?1 AND operation = ?2
