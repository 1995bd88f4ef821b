-- no row of the table: what was observed of one operation, oldest first
SELECT entry, route, began_us, content, seen
FROM observation
WHERE service = ?1 AND id = ?2
ORDER BY began_us, entry
LIMIT ?3
