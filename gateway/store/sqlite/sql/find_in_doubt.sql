-- no row of the table: records between two ids that are in doubt, written as such or lapsed by the clock; with `?6` only
-- those whose recovery lease is free and that were not put off
WITH doubt AS MATERIALIZED (
    SELECT row FROM operation WHERE state = 'in_doubt' AND id > ?1 AND id <= ?2
    UNION ALL
    SELECT row FROM operation WHERE state = 'claimed' AND due_us <= ?7 AND id > ?1 AND id <= ?2
)
SELECT {record}, NULL
FROM doubt CROSS JOIN operation AS o ON o.row = doubt.row
WHERE o.version = ?3 AND o.first_claimed_us <= ?4
    AND (?5 IS NULL OR o.route IN (SELECT value FROM json_each(?5)))
    AND (NOT ?6 OR NOT EXISTS (
        SELECT 1 FROM recovery
        WHERE recovery.id = o.id AND recovery.token = o.token AND max(held_until_us, put_off_until_us) > ?7
    ))
ORDER BY o.id
LIMIT ?8
