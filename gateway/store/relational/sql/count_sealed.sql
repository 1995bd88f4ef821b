-- no row of the table: how many rows are encrypted with these keys, of each table up to a bound; from indexes alone, but of
-- small tables
SELECT count(*) FROM (
    SELECT 1 FROM (SELECT 1 FROM operation AS t WHERE t.sealed_by = ?1 LIMIT ?2) AS t0
    UNION ALL SELECT 1 FROM (SELECT 1 FROM request AS t WHERE t.key_id = ?1 LIMIT ?2) AS t1
    UNION ALL SELECT 1 FROM (SELECT 1 FROM audit AS t WHERE t.sealed_by = ?1 LIMIT ?2) AS t2
    UNION ALL SELECT 1 FROM (SELECT 1 FROM pause AS t WHERE t.sealed_by = ?1 LIMIT ?2) AS t3
    UNION ALL SELECT 1 FROM (SELECT 1 FROM pause_audit AS t WHERE t.sealed_by = ?1 LIMIT ?2) AS t4
    UNION ALL SELECT 1 FROM (SELECT 1 FROM suspension AS t WHERE t.sealed_by = ?1 LIMIT ?2) AS t5
    UNION ALL SELECT 1 FROM (SELECT 1 FROM event AS t WHERE t.sealed_by = ?1 LIMIT ?2) AS t6
    UNION ALL SELECT 1 FROM (SELECT 1 FROM event AS t WHERE t.why_sealed_by = ?1 LIMIT ?2) AS t7
) AS counted
