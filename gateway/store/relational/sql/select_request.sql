-- no row of the table: the kept request of an operation
SELECT d.acceptance_id, r.key_id, r.sealed
FROM operation AS o {join} delivery AS d ON d.row = o.{row} {join} request AS r ON r.row = o.{row}
WHERE o.id = ? AND o.request_kept
