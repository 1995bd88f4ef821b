-- no row of the table: nobody else publishes these events of a sink until the lease ends, those that are due for the longest.
-- Behind them, of what is due last, that which was written, or put off, at a time in the future, because the clock was set back.
UPDATE event SET lease_until_us = ?5, tries = tries + 1
WHERE row IN (
    SELECT row FROM (
        SELECT row FROM (
            SELECT e.row FROM event AS e
            WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.is_behind = FALSE AND e.due_us <= ?3
                AND (e.lease_until_us <= ?3 OR e.lease_until_us > ?3 + {event_lease_us_max}) AND e.type IN ({event_types})
            ORDER BY e.due_us
            LIMIT ?4
        ) AS due
        UNION ALL
        SELECT row FROM (
            SELECT e.row, e.due_us, e.since_us, e.lease_until_us FROM event AS e
            WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.is_behind = FALSE AND e.due_us > ?3
                AND e.type IN ({event_types})
            ORDER BY e.due_us DESC
            LIMIT {ahead_max}
        ) AS later
        WHERE lease_until_us > ?3 + {event_lease_us_max}
            OR due_us = since_us AND due_us > ?3 + {step_us} AND lease_until_us <= ?3
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM suspension AS s WHERE s.service = ?1 AND s.sink = ?2)
    LIMIT ?4
)
RETURNING event_id, type, at_us, content, response, tries, redeliveries, since_us, line
