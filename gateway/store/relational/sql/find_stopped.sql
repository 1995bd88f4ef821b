-- no row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with `?7` only those whose recovery lease is free and that were not put off
SELECT {record}, NULL
FROM (
    SELECT {row} FROM operation WHERE state = ?5 AND state IN ('in_doubt', 'dead_letter') AND id > ?1 AND id <= ?2
    UNION ALL
    SELECT {row} FROM operation WHERE state = ?6 AND due_us <= ?8 AND id > ?1 AND id <= ?2
) AS stopped {join} operation AS o ON o.{row} = stopped.{row}
WHERE o.version BETWEEN {record_versions} AND NOT (o.first_claimed_us > ?3 AND o.first_claimed_us <= ?8)
    AND (CAST(?4 AS TEXT) IS NULL OR o.route IN (SELECT value FROM {each of ?4}))
    AND (NOT CAST(?7 AS BOOLEAN) OR NOT EXISTS (
        SELECT 1 FROM recovery AS r
        WHERE r.id = o.id AND r.token = o.token AND (
                r.held_until_us > ?8 AND r.held_until_us <= ?8 + {recovery_lease_us_max}
                OR r.asked_us <= ?8 AND r.put_off_until_us > ?8
            )
    ))
ORDER BY o.id
LIMIT ?9
