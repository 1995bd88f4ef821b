-- no row of the table: the next sink of the service that has events here or is suspended
SELECT min(sink) FROM (
    SELECT (SELECT e.sink FROM event AS e WHERE e.service = ?1 AND e.sink > ?2 AND NOT e.is_dead ORDER BY e.sink LIMIT 1) AS sink
    UNION ALL
    SELECT (SELECT e.sink FROM event AS e WHERE e.service = ?1 AND e.sink > ?2 AND e.is_dead ORDER BY e.sink LIMIT 1)
    UNION ALL
    SELECT min(s.sink) FROM suspension AS s WHERE s.service = ?1 AND s.sink > ?2
) AS found
