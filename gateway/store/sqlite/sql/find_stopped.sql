-- no row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with `?7` only those whose recovery lease is free and that were not put off
WITH stopped AS MATERIALIZED (
    SELECT row FROM operation WHERE state = ?5 AND state IN ('in_doubt', 'dead_letter') AND id > ?1 AND id <= ?2
    UNION ALL
    SELECT row FROM operation WHERE state = ?6 AND due_us <= ?8 AND id > ?1 AND id <= ?2
)
SELECT {record}, NULL
FROM stopped CROSS JOIN operation AS o ON o.row = stopped.row
WHERE o.version BETWEEN {record_versions} AND NOT (o.first_claimed_us > ?3 AND o.first_claimed_us <= ?8)
    AND (?4 IS NULL OR o.route IN (SELECT value FROM json_each(?4)))
    AND (NOT ?7 OR NOT EXISTS (
        SELECT 1 FROM recovery
        WHERE recovery.id = o.id AND recovery.token = o.token AND (
                held_until_us > ?8 AND held_until_us <= ?8 + {recovery_lease_us_max}
                OR asked_us <= ?8 AND put_off_until_us > ?8
            )
    ))
ORDER BY o.id
LIMIT ?9
