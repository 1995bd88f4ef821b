-- no row of the table: what a relay may publish to a sink now, the longest due first
SELECT e.event_id, e.type, e.at_us, e.content, e.response, e.tries, e.redeliveries, e.since_us, e.line
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.is_behind = FALSE AND e.due_us <= ?3
    AND NOT EXISTS (SELECT 1 FROM suspension AS s WHERE s.service = ?1 AND s.sink = ?2)
ORDER BY e.due_us
LIMIT ?4
