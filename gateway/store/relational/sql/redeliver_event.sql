-- no row of the table: a dead event is published after all, in its line the last one
--
-- The service is no part of an id's index, and written so that no index of the service's events is gone through instead.
UPDATE event SET is_dead = FALSE, tries = 0, redeliveries = redeliveries + 1, since_us = ?4, due_us = ?4,
    why = '',    is_behind = line IS NOT NULL, place = CASE WHEN line IS NOT NULL THEN 1 + coalesce((
        SELECT max(e.place) FROM event AS e
        WHERE e.service = ?1 AND e.sink = event.sink AND e.line = event.line AND NOT e.is_dead
    ), 0) END
WHERE service || '' = ?1 AND event_id = ?2 AND is_dead AND (CAST(?3 AS TEXT) IS NULL OR sink = ?3)
RETURNING sink, line
