-- no row of the table: as `select_horizon`, among the records written as in doubt or as dead letters
SELECT id FROM operation
WHERE state = ? AND state IN ('in_doubt', 'dead_letter') AND id > ?
ORDER BY id
LIMIT 1 OFFSET ?
