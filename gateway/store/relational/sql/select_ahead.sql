-- no row of the table: claims whose lease begins in the future, because the clock was set back since; never one that a newer
-- program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.due_us > ?2 AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3
