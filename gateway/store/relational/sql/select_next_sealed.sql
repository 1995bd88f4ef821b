-- no row of the table: the next ids of keys that rows are encrypted with, each set of them once
SELECT min(n.key_ids) FROM (
    SELECT (SELECT t.sealed_by FROM operation AS t WHERE t.sealed_by > ?1 ORDER BY t.sealed_by LIMIT 1) AS key_ids
    UNION ALL SELECT (SELECT t.key_id FROM request AS t WHERE t.key_id > ?1 ORDER BY t.key_id LIMIT 1)
    UNION ALL SELECT (SELECT t.sealed_by FROM audit AS t WHERE t.sealed_by > ?1 ORDER BY t.sealed_by LIMIT 1)
    UNION ALL SELECT (SELECT t.sealed_by FROM pause AS t WHERE t.sealed_by > ?1 ORDER BY t.sealed_by LIMIT 1)
    UNION ALL SELECT (SELECT t.sealed_by FROM pause_audit AS t WHERE t.sealed_by > ?1 ORDER BY t.sealed_by LIMIT 1)
    UNION ALL SELECT (SELECT t.sealed_by FROM suspension AS t WHERE t.sealed_by > ?1 ORDER BY t.sealed_by LIMIT 1)
    UNION ALL SELECT (SELECT t.sealed_by FROM event AS t WHERE t.sealed_by > ?1 ORDER BY t.sealed_by LIMIT 1)
    UNION ALL SELECT (SELECT t.why_sealed_by FROM event AS t WHERE t.why_sealed_by > ?1 ORDER BY t.why_sealed_by LIMIT 1)
) AS n
