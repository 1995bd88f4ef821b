-- claimed --lapse--> in_doubt, accepted --expire--> dead_letter, completed --retire--> tombstone,
-- released | tombstone --collect--> absent: the longest overdue first, without bodies, and never one that a newer program
-- wrote. Of a narrow tombstone `due_us` is the minute.
SELECT {record}, NULL
FROM operation AS o
WHERE state = ?1 AND due_us <= ?2 AND (kind IS NULL OR remember_until_us <= ?2) AND version BETWEEN {record_versions}
ORDER BY due_us
LIMIT ?3
