-- claimed --lapse--> in_doubt, accepted --expire--> dead_letter, completed --retire--> tombstone,
-- released | tombstone --collect--> absent: the longest overdue first, and never one that a newer program wrote; each is then
-- locked, and read.
SELECT o.id FROM operation AS o
WHERE o.state = ? AND o.due_us <= ? AND o.version BETWEEN {record_versions}
ORDER BY o.due_us
LIMIT ?
