-- no row of the table: as `select_horizon`, among the records written as in doubt
SELECT id FROM operation WHERE state = 'in_doubt' AND id > ? ORDER BY id LIMIT 1 OFFSET ?
