-- no row of the table: the last of so many records after this one that were written as in doubt; none when there are fewer
SELECT id FROM operation WHERE state = 'in_doubt' AND id > ? ORDER BY id LIMIT 1 OFFSET ?
