-- no row of the table: an event for a sink, in a line the last one. Written before: the same event.
INSERT INTO event (service, sink, event_id, type, at_us, since_us, due_us, content, response, line, is_behind, place)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7, ?8, ?8 IS NOT NULL, CASE WHEN ?8 IS NOT NULL THEN 1 + coalesce((
    SELECT max(e.place) FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND e.line = ?8 AND NOT e.is_dead
), 0) END)
ON CONFLICT (event_id, sink) DO NOTHING
