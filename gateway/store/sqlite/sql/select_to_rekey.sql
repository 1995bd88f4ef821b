-- every row: the records that have something that may not be sealed with the current key
SELECT id FROM operation WHERE id > ? AND sealed_by IS NOT ? ORDER BY id LIMIT ?
