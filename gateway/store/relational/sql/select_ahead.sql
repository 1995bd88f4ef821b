-- no row of the table: claims whose lease ends later than any lease that begins now, because the clock was set back since;
-- never one that a newer program wrote
SELECT {record}, NULL
FROM operation AS o
WHERE state = ? AND due_us > ? AND version BETWEEN {record_versions}
LIMIT ?
