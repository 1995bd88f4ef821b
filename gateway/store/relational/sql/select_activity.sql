-- no row of the table: what the processes of a service counted, latest first
SELECT writer, span_us, at_us, until_us, body
FROM activity
WHERE service = ?1 AND span_us = ?2 AND at_us >= ?3 AND at_us < ?4
ORDER BY at_us DESC
LIMIT ?5
