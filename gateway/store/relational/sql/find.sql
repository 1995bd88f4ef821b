-- no row of the table: records between two ids that are in one of the states, or have reached one by the clock alone; in
-- place of an existing body, an empty one
SELECT {record}, CASE WHEN o.body_kept AND EXISTS (SELECT 1 FROM response AS r WHERE {response}) THEN CAST('' AS {bytes}) END
FROM operation AS o LEFT JOIN kind AS k ON k.kind = o.kind
WHERE o.id > ?1 AND o.id <= ?2 AND o.version BETWEEN {record_versions}
    AND NOT (coalesce(o.first_claimed_us, o.remember_until_us - k.kept_us) > ?3 AND coalesce(o.first_claimed_us, o.remember_until_us - k.kept_us) <= ?7)
    AND (CAST(?4 AS TEXT) IS NULL OR coalesce(o.route, k.route) IN (SELECT value FROM {each of ?4}))
    AND (
        coalesce(o.state, 'tombstone') IN (SELECT value FROM {each of ?5})
        OR o.state IN (SELECT value FROM {each of ?6}) AND (
            o.due_us <= ?7
            -- Without its body a completed record is a tombstone.
            OR o.body_kept AND NOT EXISTS (SELECT 1 FROM response AS r WHERE {response})
        )
    )
ORDER BY o.id
LIMIT ?8
