-- no row of the table: whether a relay may publish anything to a sink now
SELECT 1
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.is_behind = FALSE AND e.due_us <= ?3
    AND (e.lease_until_us <= ?3 OR e.lease_until_us > ?3 + {event_lease_us_max}) AND e.type IN ({event_types})
    AND NOT EXISTS (SELECT 1 FROM suspension AS s WHERE s.service = ?1 AND s.sink = ?2)
LIMIT 1
