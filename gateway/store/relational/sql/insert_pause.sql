-- no row of the table: nothing of this operation name is dispatched from now on, also where a pause was being ended
INSERT INTO pause (service, operation, since_us, who, why, place_row) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (service, operation) DO UPDATE
SET resumed_us = NULL, place_us = 9223372036854775807, place_row = excluded.place_row
WHERE pause.resumed_us IS NOT NULL
