-- no row of the table: nothing of this operation name is dispatched from now on, also where a pause was being ended
INSERT INTO pause (service, operation, since_us, who, why) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (service, operation) DO UPDATE
SET resumed_us = NULL, place_us = 0x7fffffffffffffff, place_row = 0x7fffffffffffffff
WHERE resumed_us IS NOT NULL
