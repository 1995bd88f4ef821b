-- name: bury_event
-- no row of the table: the event waits for an operator; nothing where it was leased or delivered again
UPDATE event SET is_dead = TRUE, lease_until_us = 0, why = ?6
WHERE service = ?1 AND sink = ?2 AND event_id = ?3 AND tries = ?4 AND redeliveries = ?5
-- name: count_events
-- no row of the table: how many events of a sink wait, up to a limit, and since when the oldest of them does
SELECT count(*), min(since_us) FROM (
    SELECT e.since_us FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead LIMIT ?3
) AS found
-- name: delete_event -- no row of the table: the sink has the event
DELETE FROM event WHERE service = ? AND sink = ? AND event_id = ?
-- name: delete_suspension -- no row of the table: the sink gets its events again
DELETE FROM suspension WHERE service = ? AND sink = ?
-- name: select_due_events
-- no row of the table: the events of a sink that a relay may publish now, those that are due for the longest. Behind them, of
-- what is due last, that which was written, or put off, at a time in the future, because the clock was set back.
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
-- name: give_event_turn -- no row of the table: the first event of a line may be published
UPDATE event SET is_behind = FALSE
WHERE is_behind AND row = (
    SELECT e.row FROM event AS e
    WHERE e.service = ?1 AND e.sink = ?2 AND e.line = ?3 AND NOT e.is_dead
    ORDER BY e.place
    LIMIT 1
)
-- name: insert_suspension -- no row of the table: no event of this sink is leased from now on
INSERT INTO suspension (service, sink, why) VALUES (?, ?, ?) ON CONFLICT (service, sink) DO NOTHING
-- name: lease_events
-- no row of the table: nobody else publishes the events that `select_due_events` finds until the lease ends
UPDATE event SET lease_until_us = ?5, tries = tries + 1
WHERE row IN ({due events})
RETURNING event_id, type, at_us, content, response, tries, redeliveries, since_us, line
-- name: put_off_event
-- no row of the table: the event is published again later; nothing where it was leased or delivered again. The lease ends now,
-- which is when the pause begins. (The last condition is none of an index that has all waiting events of the sink.)
UPDATE event SET due_us = ?6, lease_until_us = ?8, why = ?7
WHERE service = ?1 AND sink = ?2 AND event_id = ?3 AND tries = ?4 AND redeliveries = ?5
    AND CASE WHEN is_dead THEN 1 ELSE 0 END = 0
-- name: redeliver_event
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
-- name: resume_events
-- no row of the table: what waits for the sink may be published at once, also what a clock wrote before it was set back
UPDATE event SET due_us = ?3 WHERE service = ?1 AND sink = ?2 AND NOT is_dead AND due_us > ?3
-- name: select_dead_events -- no row of the table: a page of the dead events of a sink
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND e.is_dead AND e.event_id > ?3
ORDER BY e.event_id
LIMIT ?4
-- name: select_many_waiting_events
-- no row of the table: the same where they are many: goes along the ids of all sinks' events, of which these are a good part
-- 
-- Whether one waits is written so that no index of a sink's events, which would all have to be sorted, can serve.
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND CASE WHEN e.is_dead THEN 0 ELSE 1 END = 1 AND e.event_id > ?3
ORDER BY e.event_id
LIMIT ?4
-- name: select_next_sink -- no row of the table: the next sink of the service that has events here or is suspended
SELECT min(sink) FROM (
    SELECT (SELECT e.sink FROM event AS e WHERE e.service = ?1 AND e.sink > ?2 AND NOT e.is_dead ORDER BY e.sink LIMIT 1) AS sink
    UNION ALL
    SELECT (SELECT e.sink FROM event AS e WHERE e.service = ?1 AND e.sink > ?2 AND e.is_dead ORDER BY e.sink LIMIT 1)
    UNION ALL
    SELECT min(s.sink) FROM suspension AS s WHERE s.service = ?1 AND s.sink > ?2
) AS found
-- name: select_sink
-- no row of the table: the dead events of a sink, up to a limit; why the one that failed last did; why it is suspended
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND e.is_dead LIMIT ?3) AS dead),
    (
        SELECT e.why FROM event AS e
        WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.why <> ''
        ORDER BY e.due_us DESC
        LIMIT 1
    ),
    (SELECT s.why FROM suspension AS s WHERE s.service = ?1 AND s.sink = ?2)
-- name: select_waiting_events
-- no row of the table: a page of the events that a sink has yet to receive, where these are few: all of them are sorted
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM event AS e
WHERE e.service = ?1 AND e.sink = ?2 AND NOT e.is_dead AND e.event_id > ?3
ORDER BY e.event_id || ''
LIMIT ?4
-- name: select_outboxes -- no row of the table: which events the services write
SELECT service, content FROM outbox
-- name: upsert_outbox -- no row of the table: which events a service writes from now on
INSERT INTO outbox (service, content) VALUES (?1, ?2) ON CONFLICT (service) DO UPDATE SET content = ?2
