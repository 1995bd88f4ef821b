-- no row of the table: the same where they are many: goes along the ids of all sinks' events, of which these are a good part
--
-- Whether one waits is written so that no index of a sink's events, which would all have to be sorted, can serve.
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND CASE WHEN e.is_dead THEN 0 ELSE 1 END = 1 AND e.event_id > ?3
ORDER BY e.event_id
LIMIT ?4
