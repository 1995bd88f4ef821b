-- no row of the table: an event for a sink without order. Written before: the same event.
INSERT INTO event (row, service, sink, event_id, type, at_us, since_us, due_us, content, response)
VALUES (convert_to(?3 || ' ' || ?2, 'UTF8'), ?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7)
ON CONFLICT (row) DO NOTHING
