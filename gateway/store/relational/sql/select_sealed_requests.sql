-- no row of the table: some kept requests that are encrypted with this key
SELECT o.id, d.acceptance_id, r.key_id, r.sealed
FROM request AS r {join} operation AS o ON o.{row} = r.row {join} delivery AS d ON d.row = r.row
WHERE r.key_id = ?1 LIMIT ?2
