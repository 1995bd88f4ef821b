-- no row of the table: the operations that were observed with a content since then, and when last
SELECT content, id, max(began_us) FROM observation
WHERE service = ?2 AND content = {key} AND began_us >= ?3
GROUP BY content, id
LIMIT ?4
