-- no row of the table: kept requests in their order
SELECT r.row, o.id, d.acceptance_id, r.key_id, r.sealed
FROM request AS r {join} operation AS o ON o.{row} = r.row {join} delivery AS d ON d.row = r.row
WHERE r.row > ? ORDER BY r.row LIMIT ?
