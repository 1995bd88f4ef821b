-- no row of the table: a page of the events that a sink has yet to receive, where these are few: all of them are sorted
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.event_id > ?3
ORDER BY e.event_id || ''
LIMIT ?4
