-- no row of the table: as `select_horizon`, in the order of insertion
SELECT {row} FROM operation WHERE {row} > ? ORDER BY {row} LIMIT 1 OFFSET ?
