-- no row of the table: an event for a sink without order. Written before: the same event.
--
-- Reads nothing: a statement that reads the table it inserts into costs three times as much, for its temporary table.
INSERT INTO event (service, sink, event_id, type, at_us, since_us, due_us, content, response)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7)
ON CONFLICT (event_id, sink) DO NOTHING
