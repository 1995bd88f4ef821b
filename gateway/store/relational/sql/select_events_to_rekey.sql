-- no row of the table: events in their order
SELECT row, event_id, sink, content, response, why FROM event WHERE row > ? ORDER BY row LIMIT ?
