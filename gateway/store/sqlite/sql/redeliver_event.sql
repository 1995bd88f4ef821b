-- no row of the table: a dead event is published after all
UPDATE event SET is_dead = 0, tries = 0, redeliveries = redeliveries + 1, since_us = ?4, due_us = ?4
WHERE service = ?1 AND event_id = ?2 AND is_dead AND (?3 IS NULL OR sink = ?3)
