-- no row of the table: claims whose lease begins in the future, because the clock was set back since; never one that a newer
-- program wrote
SELECT {record}, NULL
FROM operation AS o
WHERE state = ?1 AND due_us > ?2 AND lease_until_us > ?2 + lease_us AND version BETWEEN {record_versions}
LIMIT ?3
