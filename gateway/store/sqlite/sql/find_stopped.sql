-- no row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with `?8` only those whose recovery lease is free and that were not put off
WITH stopped AS MATERIALIZED (
    SELECT row FROM operation WHERE state = ?6 AND state IN ('in_doubt', 'dead_letter') AND id > ?1 AND id <= ?2
    UNION ALL
    SELECT row FROM operation WHERE state = ?7 AND due_us <= ?9 AND id > ?1 AND id <= ?2
)
SELECT {record}, NULL
FROM stopped CROSS JOIN operation AS o ON o.row = stopped.row
WHERE o.version = ?3 AND o.first_claimed_us <= ?4
    AND (?5 IS NULL OR o.route IN (SELECT value FROM json_each(?5)))
    AND (NOT ?8 OR NOT EXISTS (
        SELECT 1 FROM recovery
        WHERE recovery.id = o.id AND recovery.token = o.token AND max(held_until_us, put_off_until_us) > ?9
    ))
ORDER BY o.id
LIMIT ?10
