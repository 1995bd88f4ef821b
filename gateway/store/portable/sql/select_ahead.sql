-- no row of the table: claims whose lease ends later than any lease that begins now, because the clock was set back since;
-- never one that a newer program wrote
SELECT o.id FROM operation AS o WHERE o.state = ? AND o.due_us > ? AND o.version BETWEEN {record_versions} LIMIT ?
