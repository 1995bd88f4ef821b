-- no row of the table: an event for an ordered sink, the last one in its line. Written before: the same event.
INSERT INTO event (
    row, service, sink, event_id, type, at_us, since_us, due_us, content, response, line, is_behind, place
)
VALUES (
    convert_to(?3 || ' ' || ?2, 'UTF8'), ?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7, ?8, TRUE, 1 + coalesce((
        SELECT max(e.place) FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND e.line = ?8 AND NOT e.is_dead
    ), 0)
)
ON CONFLICT (row) DO NOTHING
