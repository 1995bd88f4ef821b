-- no row of the table: the next route of which something waits under an operation name
SELECT d.route
FROM delivery AS d
WHERE d.is_accepted AND NOT d.is_behind AND d.service = ?1 AND d.operation = ?2 AND d.route > ?3
ORDER BY d.route
LIMIT 1
