-- no row of the table: the operations that were observed with a content since then, and when last
SELECT id, max(began_us) FROM observation WHERE service = ?1 AND content = ?2 AND began_us >= ?3 GROUP BY id LIMIT ?4
