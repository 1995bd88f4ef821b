-- every row: the next records, in the order of their ids
SELECT id FROM operation WHERE id > ?1 ORDER BY id LIMIT ?2
