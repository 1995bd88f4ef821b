-- no row of the table: operations with this finding, the latest first; one may come several times
SELECT id
FROM observation
WHERE service = ?1 AND route = ?2 AND verdict = ?3 AND is_refused = ?4 AND id IS NOT NULL
ORDER BY began_us DESC
LIMIT ?5
