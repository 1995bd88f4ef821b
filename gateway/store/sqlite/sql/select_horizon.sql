-- no row of the table: the last of so many records after this one; none when there are fewer
SELECT id FROM operation WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?
