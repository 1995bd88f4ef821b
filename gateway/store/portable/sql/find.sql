-- no row of the table: records between two ids that are in one of the states, or have reached one by the clock alone; in
-- place of an existing body, an empty one
SELECT {record}, CASE WHEN o.body IS NOT NULL THEN ''::BYTEA END
FROM operation AS o
WHERE o.id > ?1 AND o.id <= ?2 AND o.version BETWEEN {record_versions}
    AND NOT (coalesce(o.first_claimed_us, o.completed_us) > ?3 AND coalesce(o.first_claimed_us, o.completed_us) <= ?7)
    AND (?4::TEXT IS NULL OR coalesce(o.route, (SELECT k.route FROM kind AS k WHERE k.kind = o.kind)) IN (SELECT jsonb_array_elements_text(?4::TEXT::JSONB)))
    AND (
        o.state IN (SELECT jsonb_array_elements_text(?5::TEXT::JSONB))
        OR o.state IN (SELECT jsonb_array_elements_text(?6::TEXT::JSONB)) AND (
            o.due_us <= ?7
            -- Without its body a completed record is a tombstone.
            OR o.body_kept AND o.body IS NULL
        )
    )
ORDER BY o.id
LIMIT ?8
