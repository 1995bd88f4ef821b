-- claimed --lapse--> in_doubt, accepted --expire--> dead_letter, completed --retire--> tombstone,
-- released | tombstone --collect--> absent: the longest overdue first, without bodies, and never one that a newer program
-- wrote.
SELECT {record}, NULL
FROM operation AS o
WHERE state = ? AND due_us <= ? AND version BETWEEN {record_versions}
ORDER BY due_us
LIMIT ?
