-- Waiting outcomes after a given one, in the order of writing.
SELECT {entry}, body FROM entry INDEXED BY entry_waiting WHERE refused_us IS NULL AND id > ? ORDER BY id LIMIT ?
