-- no row of the table: records between two ids that are in one of the states, or have reached one by the clock alone; in
-- place of an existing body, an empty one
SELECT {record}, CASE WHEN EXISTS (SELECT 1 FROM response WHERE response.row = o.row) THEN x'' END
FROM operation AS o
WHERE o.id > ?1 AND o.id <= ?2 AND o.version BETWEEN {record_versions}
    AND NOT (coalesce(o.first_claimed_us, o.completed_us) > ?3 AND coalesce(o.first_claimed_us, o.completed_us) <= ?7)
    AND (?4 IS NULL OR coalesce(o.route, (SELECT k.route FROM kind AS k WHERE k.kind = o.kind)) IN (SELECT value FROM json_each(?4)))
    AND (
        o.state IN (SELECT value FROM json_each(?5))
        OR o.state IN (SELECT value FROM json_each(?6)) AND (
            o.due_us <= ?7
            -- Without its body a completed record is a tombstone.
            OR o.body_kept AND NOT EXISTS (SELECT 1 FROM response WHERE response.row = o.row)
        )
    )
ORDER BY o.id
LIMIT ?8
