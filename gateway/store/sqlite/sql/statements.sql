-- name: advance_sequence -- no row of the table: no token up to this one is drawn any more
UPDATE sequence SET token = max(token, ?) WHERE one = 1
-- name: insert_audit
-- in_doubt --prove | disprove | reinstate-->, dead_letter --requeue-->, accepted | dead_letter --withdraw-->,
-- completed --purge-->, released | tombstone --erase-->: who made the change and why, in the same transaction
INSERT INTO audit (id, at_us, event, token, who, why, keep_until_us) VALUES (?, ?, ?, ?, ?, ?, ?)
-- name: insert_ordered_event
-- no row of the table: an event for an ordered sink, the last one in its line. Written before: the same event.
INSERT INTO event (service, sink, event_id, type, at_us, since_us, due_us, content, response, line, is_behind, place)
VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7, ?8, 1, 1 + coalesce((
    SELECT max(e.place) FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND e.line = ?8 AND NOT e.is_dead
), 0))
ON CONFLICT (event_id, sink) DO NOTHING
-- name: insert_pause_audit
-- no row of the table: an operation name was paused or resumed, by whom and why, in the same transaction
INSERT INTO pause_audit (service, operation, at_us, is_resumed, who, why) VALUES (?, ?, ?, ?, ?, ?)
-- name: select_backlog
-- no row of the table: what a service has not delivered, by route and reason, and the earliest acceptance of what waits
SELECT b.route, b.reason, b.number, b.request_bytes, (
    SELECT min(d.accepted_us) FROM delivery AS d
    WHERE d.is_accepted AND d.service = b.service AND d.route = b.route AND b.reason = ''
)
FROM backlog AS b
WHERE b.service = ? AND b.number > 0
-- name: select_epoch -- no row of the table: which memory this is
SELECT e.identity, s.token, e.memo, e.generation, e.level FROM epoch AS e, sequence AS s WHERE e.one = 1 AND s.one = 1
-- name: select_sequence
-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: the last token drawn
SELECT token FROM sequence WHERE one = 1
-- name: update_sequence
-- absent | released --claim | accept-->, accepted --dispatch-->, in_doubt --takeover-->: the last token drawn, in the
-- same transaction
UPDATE sequence SET token = ? WHERE one = 1
-- name: upsert_activity -- no row of the table: what processes counted in a minute, and in these ten minutes so far
INSERT INTO activity (service, writer, span_us, at_us, until_us, body)
SELECT ?1, unhex(value ->> 0), value ->> 1, value ->> 2, value ->> 3, unhex(value ->> 4) FROM json_each(?2) WHERE 1 = 1
ON CONFLICT (service, span_us, at_us, writer) DO UPDATE SET until_us = excluded.until_us, body = excluded.body
