-- claimed --lapse--> in_doubt, accepted --expire--> dead_letter, completed --retire--> tombstone,
-- released | tombstone --collect--> absent: the longest overdue first, and never one that a newer program wrote; each is then
-- locked, and read again. Of a narrow tombstone `due_us` is the minute.
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.due_us <= ?2 AND (o.kind IS NULL OR o.remember_until_us <= ?2) AND o.version BETWEEN {record_versions}
ORDER BY o.due_us
LIMIT ?3
