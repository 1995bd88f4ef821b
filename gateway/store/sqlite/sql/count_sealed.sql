-- no row of the table: how many rows are encrypted with which keys, of each table up to a bound; from indexes alone, but of small tables
WITH RECURSIVE used (keys) AS (
    SELECT ''
    UNION ALL
    SELECT (SELECT min(n.keys) FROM (
        SELECT (SELECT t.sealed_by FROM operation t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1) AS keys
        UNION ALL SELECT (SELECT t.key_id FROM request t WHERE t.key_id > u.keys ORDER BY t.key_id LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM audit t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM pause t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM pause_audit t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM suspension t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
        UNION ALL SELECT (SELECT t.sealed_by FROM event t WHERE t.sealed_by > u.keys ORDER BY t.sealed_by LIMIT 1)
    ) n)
    FROM used u
    WHERE u.keys IS NOT NULL
)
SELECT u.keys, (SELECT count(*) FROM (
    SELECT 1 FROM (SELECT 1 FROM operation t WHERE t.sealed_by = u.keys LIMIT ?1) t0
    UNION ALL SELECT 1 FROM (SELECT 1 FROM request t WHERE t.key_id = u.keys LIMIT ?1) t1
    UNION ALL SELECT 1 FROM (SELECT 1 FROM audit t WHERE t.sealed_by = u.keys LIMIT ?1) t2
    UNION ALL SELECT 1 FROM (SELECT 1 FROM pause t WHERE t.sealed_by = u.keys LIMIT ?1) t3
    UNION ALL SELECT 1 FROM (SELECT 1 FROM pause_audit t WHERE t.sealed_by = u.keys LIMIT ?1) t4
    UNION ALL SELECT 1 FROM (SELECT 1 FROM suspension t WHERE t.sealed_by = u.keys LIMIT ?1) t5
    UNION ALL SELECT 1 FROM (SELECT 1 FROM event t WHERE t.sealed_by = u.keys LIMIT ?1) t6
) counted)
FROM used u
WHERE u.keys <> ''
