-- no row of the table: records between two ids that are in doubt or dead letters, written as such or made so by the clock;
-- with `?7` only those whose recovery lease is free and that were not put off
SELECT {record}, NULL::BYTEA
FROM operation AS o
WHERE (
        (o.state = ?5 AND o.state IN ('in_doubt', 'dead_letter') AND o.id > ?1 AND o.id <= ?2)
        OR (o.state = ?6 AND o.due_us <= ?8 AND o.id > ?1 AND o.id <= ?2)
    )
    AND o.version BETWEEN {record_versions} AND NOT (o.first_claimed_us > ?3 AND o.first_claimed_us <= ?8)
    AND (?4::TEXT IS NULL OR o.route IN (SELECT jsonb_array_elements_text(?4::TEXT::JSONB)))
    AND (NOT ?7::BOOLEAN OR NOT EXISTS (
        SELECT 1 FROM recovery AS r
        WHERE r.id = o.id AND r.token = o.token AND (
                r.held_until_us > ?8 AND r.held_until_us <= ?8 + {recovery_lease_us_max}
                OR r.asked_us <= ?8 AND r.put_off_until_us > ?8
            )
    ))
ORDER BY o.id
LIMIT ?9
