-- no row of the table: how many operations are encrypted with which keys, each counted up to a bound; from the index alone
WITH RECURSIVE used (keys) AS (
    SELECT (SELECT o.sealed_by FROM operation o WHERE o.sealed_by IS NOT NULL ORDER BY o.sealed_by LIMIT 1)
    UNION ALL
    SELECT (SELECT o.sealed_by FROM operation o WHERE o.sealed_by > u.keys ORDER BY o.sealed_by LIMIT 1)
    FROM used u
    WHERE u.keys IS NOT NULL
)
SELECT u.keys, (SELECT count(*) FROM (SELECT 1 FROM operation o WHERE o.sealed_by = u.keys LIMIT ?) counted)
FROM used u
WHERE u.keys IS NOT NULL
