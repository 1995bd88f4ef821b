-- no row of the table: what was observed of one operation, oldest first
SELECT id, began_us, entry, route, content, seen
FROM observation
WHERE service = ?2 AND id = {key}
ORDER BY began_us, entry
LIMIT ?3
