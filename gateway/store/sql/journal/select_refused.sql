-- What the durable store refused, for an operator: without the answers.
SELECT operation_id, token, event, route, journaled_us, refused_us, refused_why
FROM entry INDEXED BY entry_refused WHERE refused_us IS NOT NULL ORDER BY id LIMIT ?
