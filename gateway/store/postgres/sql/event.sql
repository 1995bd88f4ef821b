-- name: insert_events
-- No row of its own: the events of changes, for the sinks of a service. Written before: the same event.
INSERT INTO idempotency_gateway.event (
    service, sink, event_id, type, at_us, since_us, due_us, content, response, line, is_behind, place
)
SELECT
    $2::text, i.to_sink, i.of_event, i.of_type, $1::bigint, $1::bigint, $1::bigint, i.new_content, i.new_response,
    i.in_line, i.in_line IS NOT NULL, CASE WHEN i.in_line IS NOT NULL THEN i.ordinal + coalesce((
        SELECT max(e.place) FROM idempotency_gateway.event e
        WHERE e.service = $2::text AND e.sink = i.to_sink AND e.line = i.in_line AND NOT e.is_dead
    ), 0) END
FROM unnest($3::text[], $4::text[], $5::text[], $6::bytea[], $7::bytea[], $8::bytea[])
    WITH ORDINALITY AS i (to_sink, of_event, of_type, new_content, new_response, in_line, ordinal)
ON CONFLICT (service, sink, event_id) DO NOTHING

-- name: lock_lines
-- No row of the table: lock lines of events by the numbers of their locks, which are sorted, until the transaction ends. Taken
-- last of all locks; what the lock protects is read and written by later statements.
SELECT pg_advisory_xact_lock({line_space}, i.line_key) FROM unnest($1::integer[]) AS i (line_key)

-- name: lock_event_heads
-- No row of the table: where the first events of these locked lines are, if they are behind. A statement of its own: it may
-- wait for one that encrypts an event anew, and the update would not see what that one wrote.
SELECT h.ctid
FROM unnest($2::text[], $3::bytea[]) AS i (of_sink, of_line) CROSS JOIN LATERAL (
    SELECT h.ctid, h.is_behind
    FROM idempotency_gateway.event h
    WHERE h.service = $1::text AND h.sink = i.of_sink AND h.line = i.of_line AND NOT h.is_dead
    ORDER BY h.place
    LIMIT 1
    FOR UPDATE
) h
WHERE h.is_behind

-- name: give_event_turns
-- No row of the table: these events, which are locked, may be published.
UPDATE idempotency_gateway.event e SET is_behind = false WHERE e.ctid = ANY ($1::tid[])

-- name: lease_events
-- No row of the table: at most so many due events of each sink, which nobody else publishes until the lease ends.
--
-- Skips those that another relay is leasing. A lease that a crash undoes costs a duplicate, so nothing is flushed. The rows
-- are updated where they were found: a join by key may be planned on an empty table, and then reads all that wait. Beside what
-- is due, it is what was written, or put off, at a time in the future, because the clock was set back, of what is due last.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
), wanted AS MATERIALIZED (
    SELECT w.sink, w.number
    FROM unnest($3::text[], $4::bigint[]) AS w (sink, number)
    WHERE NOT EXISTS (SELECT FROM idempotency_gateway.suspension s WHERE s.service = $2::text AND s.sink = w.sink)
), due AS MATERIALIZED (
    SELECT e.ctid, w.sink
    FROM wanted w CROSS JOIN clock c CROSS JOIN LATERAL (
        SELECT e.ctid
        FROM idempotency_gateway.event e
        WHERE e.service = $2::text AND e.sink = w.sink AND NOT e.is_dead AND NOT e.is_behind
            AND e.due_us <= c.now_us AND e.type IN ({event_types})
            AND (e.lease_until_us <= c.now_us OR e.lease_until_us > c.now_us + {event_lease_us_max})
        ORDER BY e.due_us
        LIMIT w.number
        FOR UPDATE SKIP LOCKED
    ) e
), ahead AS MATERIALIZED (
    SELECT e.ctid
    FROM wanted w CROSS JOIN clock c CROSS JOIN LATERAL (
        SELECT min(l.due_us) AS from_us
        FROM (
            SELECT l.due_us
            FROM idempotency_gateway.event l
            WHERE l.service = $2::text AND l.sink = w.sink AND NOT l.is_dead AND NOT l.is_behind AND l.due_us > c.now_us
            ORDER BY l.due_us DESC
            LIMIT {ahead_max}
        ) l
    ) h CROSS JOIN LATERAL (
        SELECT e.ctid
        FROM idempotency_gateway.event e
        WHERE e.service = $2::text AND e.sink = w.sink AND NOT e.is_dead AND NOT e.is_behind
            AND e.due_us >= h.from_us AND e.type IN ({event_types})
            AND (
                e.lease_until_us > c.now_us + {event_lease_us_max}
                OR e.due_us = e.since_us AND e.due_us > c.now_us + {step_us} AND e.lease_until_us <= c.now_us
            )
        ORDER BY e.due_us
        LIMIT w.number - (SELECT count(*) FROM due d WHERE d.sink = w.sink)
        FOR UPDATE SKIP LOCKED
    ) e
)
UPDATE idempotency_gateway.event e SET lease_until_us = c.now_us + $5::bigint, tries = e.tries + 1
FROM clock c
WHERE e.ctid = ANY (ARRAY(SELECT d.ctid FROM due d UNION ALL SELECT a.ctid FROM ahead a))
RETURNING
    c.now_us, e.sink, e.event_id, e.type, e.at_us, e.content, e.response, e.tries, e.redeliveries, e.since_us, e.line

-- name: report_events
-- No row of the table: what became of leased events. A published one is gone; another report counts only while nobody leased
-- the event again or had it delivered again. What another relay leases at this moment may be missed, and is published once more.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us, set_config('synchronous_commit', 'off', true)
), report AS MATERIALIZED (
    SELECT e.ctid, r.tries, r.redeliveries, r.fate, r.pause_us, r.why
    FROM unnest($3::text[], $4::text[], $5::integer[], $6::integer[], $7::text[], $8::bigint[], $9::text[])
        AS r (sink, event_id, tries, redeliveries, fate, pause_us, why) CROSS JOIN LATERAL (
        SELECT e.ctid FROM idempotency_gateway.event e
        WHERE e.service = $2::text AND e.sink = r.sink AND e.event_id = r.event_id
        LIMIT 1
    ) e
), published AS (
    DELETE FROM idempotency_gateway.event e
    USING report r
    WHERE e.ctid = r.ctid AND r.fate = 'published'
), put_off AS (
    UPDATE idempotency_gateway.event e SET due_us = c.now_us + r.pause_us, lease_until_us = c.now_us, why = r.why
    FROM report r CROSS JOIN clock c
    WHERE e.ctid = r.ctid AND e.tries = r.tries AND e.redeliveries = r.redeliveries AND r.fate = 'put_off' AND NOT e.is_dead
), buried AS (
    UPDATE idempotency_gateway.event e SET is_dead = true, lease_until_us = 0, why = r.why
    FROM report r
    WHERE e.ctid = r.ctid AND e.tries = r.tries AND e.redeliveries = r.redeliveries AND r.fate = 'dead'
)
SELECT c.now_us FROM clock c

-- name: find_waiting_events
-- No row of the table: a page of the events that a sink has yet to receive.
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM idempotency_gateway.event e
WHERE e.service = $1::text AND e.sink = $2::text AND NOT e.is_dead AND e.event_id > $3::text
ORDER BY e.event_id
LIMIT $4::bigint

-- name: find_dead_events
-- No row of the table: a page of the dead events of a sink.
SELECT e.event_id, e.type, e.at_us, e.content, e.tries, e.is_dead, e.why
FROM idempotency_gateway.event e
WHERE e.service = $1::text AND e.sink = $2::text AND e.is_dead AND e.event_id > $3::text
ORDER BY e.event_id
LIMIT $4::bigint

-- name: dead_lines
-- No row of the table: the lines that a dead event has at these sinks.
SELECT e.sink, e.line
FROM idempotency_gateway.event e CROSS JOIN unnest($3::text[]) AS w (sink)
WHERE e.service = $1::text AND e.sink = w.sink AND e.event_id = $2::text AND e.is_dead AND e.line IS NOT NULL

-- name: redeliver_event
-- No row of the table: a dead event is published after all, to these sinks, in a line the last one.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
)
UPDATE idempotency_gateway.event e
SET is_dead = false, tries = 0, redeliveries = e.redeliveries + 1, since_us = c.now_us, due_us = c.now_us, why = '',
    is_behind = e.line IS NOT NULL, place = CASE WHEN e.line IS NOT NULL THEN 1 + coalesce((
        SELECT max(o.place) FROM idempotency_gateway.event o
        WHERE o.service = $2::text AND o.sink = e.sink AND o.line = e.line AND NOT o.is_dead
    ), 0) END
FROM clock c CROSS JOIN unnest($4::text[]) AS w (sink)
WHERE e.service = $2::text AND e.sink = w.sink AND e.event_id = $3::text AND e.is_dead
RETURNING e.sink

-- name: suspend_sink
-- No row of the table: no event of this sink is leased from now on.
INSERT INTO idempotency_gateway.suspension (service, sink, why) VALUES ($1::text, $2::text, $3::text)
ON CONFLICT (service, sink) DO NOTHING
RETURNING sink

-- name: resume_sink
-- No row of the table: the sink gets its events again at once, also those that a clock wrote before it was set back.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now_us
), resumed AS (
    DELETE FROM idempotency_gateway.suspension s WHERE s.service = $2::text AND s.sink = $3::text
    RETURNING s.sink
), moved AS (
    UPDATE idempotency_gateway.event e SET due_us = c.now_us
    FROM resumed r CROSS JOIN clock c
    WHERE e.service = $2::text AND e.sink = r.sink AND NOT e.is_dead AND e.due_us > c.now_us
)
SELECT r.sink FROM resumed r

-- name: sinks
-- No row of the table: the sinks of a service that have events here or are suspended. Counts up to a limit.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT {now} AS now_us
), named AS (
    SELECT min(e.sink) AS sink FROM idempotency_gateway.event e WHERE e.service = $2::text
    UNION ALL
    SELECT (SELECT min(e.sink) FROM idempotency_gateway.event e WHERE e.service = $2::text AND e.sink > n.sink)
    FROM named n
    WHERE n.sink IS NOT NULL
), known AS (
    SELECT n.sink FROM named n WHERE n.sink IS NOT NULL
    UNION
    SELECT s.sink FROM idempotency_gateway.suspension s WHERE s.service = $2::text
)
SELECT c.now_us, k.sink, p.pending, p.since_us, d.dead, l.why AS last_error, s.why AS suspended_why
FROM known k CROSS JOIN clock c CROSS JOIN LATERAL (
    SELECT count(*) AS pending, min(e.since_us) AS since_us
    FROM (
        SELECT e.since_us
        FROM idempotency_gateway.event e
        WHERE e.service = $2::text AND e.sink = k.sink AND NOT e.is_dead
        LIMIT $3::bigint
    ) e
) p CROSS JOIN LATERAL (
    SELECT count(*) AS dead
    FROM (
        SELECT FROM idempotency_gateway.event e
        WHERE e.service = $2::text AND e.sink = k.sink AND e.is_dead
        LIMIT $3::bigint
    ) e
) d LEFT JOIN LATERAL (
    SELECT e.why
    FROM idempotency_gateway.event e
    WHERE e.service = $2::text AND e.sink = k.sink AND NOT e.is_dead AND e.why <> ''
    ORDER BY e.due_us DESC
    LIMIT 1
) l ON true LEFT JOIN idempotency_gateway.suspension s ON s.service = $2::text AND s.sink = k.sink

-- name: write_outbox
-- No row of the table: which events a service writes from now on.
INSERT INTO idempotency_gateway.outbox (service, content) VALUES ($1::text, $2::bytea)
ON CONFLICT (service) DO UPDATE SET content = excluded.content

-- name: outboxes
-- No row of the table: which events the other services write.
SELECT b.content FROM idempotency_gateway.outbox b WHERE b.service <> $1::text
