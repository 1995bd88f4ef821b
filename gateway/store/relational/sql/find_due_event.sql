-- no row of the table: whether a relay may publish anything to a sink now, as in `lease_events`
SELECT 1 WHERE (
    EXISTS (
        SELECT 1 FROM event AS e
        WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.is_behind = FALSE AND e.due_us <= ?3
            AND (e.lease_until_us <= ?3 OR e.lease_until_us > ?3 + {event_lease_us_max}) AND e.type IN ({event_types})
    )
    OR EXISTS (
        SELECT 1 FROM (
            SELECT e.due_us, e.since_us, e.lease_until_us FROM event AS e
            WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.is_behind = FALSE AND e.due_us > ?3
                AND e.type IN ({event_types})
            ORDER BY e.due_us DESC
            LIMIT {ahead_max}
        ) AS later
        WHERE lease_until_us > ?3 + {event_lease_us_max}
            OR due_us = since_us AND due_us > ?3 + {step_us} AND lease_until_us <= ?3
    )
) AND NOT EXISTS (SELECT 1 FROM suspension AS s WHERE s.service = ?1 AND s.sink = ?2)
