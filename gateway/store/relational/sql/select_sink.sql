-- no row of the table: the dead events of a sink, up to a limit; why the one that failed last did; why it is suspended
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND e.is_dead LIMIT ?3) AS dead),
    (
        SELECT e.why FROM event AS e
        WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.why <> ''
        ORDER BY e.due_us DESC
        LIMIT 1
    ),
    (SELECT s.why FROM suspension AS s WHERE s.service = ?1 AND s.sink = ?2)
