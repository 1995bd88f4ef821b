-- no row of the table: the last of this many records after an id; none when there are fewer
SELECT id FROM operation WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?
