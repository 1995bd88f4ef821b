-- name: add_witness
-- no row of the table: create the witness of a link
INSERT INTO witness (link, number, kept_number, check_us)
SELECT $2::BYTEA, 1, 0, {now} + {witness_keep_us}
RETURNING {now} AS now_us, number

-- name: advance_witness
-- no row of the table: raise the witness of a link, in the transaction of the changes that it stands for
UPDATE witness SET number = number + 1 WHERE link = $2 RETURNING {now} AS now_us, number

-- name: insert_audit
-- in_doubt --prove | disprove | reinstate-->, dead_letter --requeue-->, accepted | dead_letter --withdraw-->,
-- completed --purge-->, released | tombstone --erase-->: who made the change and why, in the same transaction. The number is
-- higher than all before.
INSERT INTO audit (row, id, at_us, event, token, who, why, keep_until_us)
VALUES (greatest(?2, (SELECT coalesce(max(a.row), 0) + 1 FROM audit AS a)), ?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: insert_ordered_event
-- no row of the table: an event for an ordered sink, the last one in its line. Written before: the same event.
INSERT INTO event (
    row, service, sink, event_id, type, at_us, since_us, due_us, content, response, line, is_behind, place
)
VALUES (
    convert_to(?3 || ' ' || ?2, 'UTF8'), ?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7, ?8, TRUE, 1 + coalesce((
        SELECT max(e.place) FROM event AS e WHERE e.service = ?1 AND e.sink = ?2 AND e.line = ?8 AND NOT e.is_dead
    ), 0)
)
ON CONFLICT (row) DO NOTHING

-- name: insert_pause_audit
-- no row of the table: an operation name was paused or resumed, by whom and why, in the same transaction
INSERT INTO pause_audit (row, service, operation, at_us, is_resumed, who, why)
VALUES (greatest(?3, (SELECT coalesce(max(a.row), 0) + 1 FROM pause_audit AS a)), ?1, ?2, ?3, ?4, ?5, ?6)

-- name: select_backlog
-- no row of the table: what a service has not delivered, by route and reason, and the earliest acceptance of what waits; of more
-- than this an estimate
SELECT w.route, '', count(*), sum(w.request_bytes)::BIGINT, min(w.accepted_us) FROM (
    SELECT d.route, d.request_bytes, d.accepted_us FROM delivery AS d WHERE d.is_accepted AND d.service = ?1 LIMIT {backlog_count_max}
) AS w
GROUP BY w.route
UNION ALL
SELECT w.route, w.reason, count(*), sum(w.request_bytes)::BIGINT, 0 FROM (
    SELECT d.route, d.reason, d.request_bytes FROM delivery AS d
    WHERE NOT d.is_accepted AND d.reason IS NOT NULL AND d.service = ?1
    LIMIT {backlog_count_max}
) AS w
GROUP BY w.route, w.reason

-- name: select_last_in_lane
-- absent | released --accept--> accepted: the last number in a lane
SELECT max(d.lane_number) FROM delivery AS d WHERE d.lane = ?

-- name: upsert_activity
-- no row of the table: what processes counted in a minute, and in these ten minutes so far
INSERT INTO activity (service, writer, span_us, at_us, until_us, body)
SELECT ?1::TEXT, i.writer, i.span_us, i.at_us, i.until_us, i.body
FROM unnest(?2::BYTEA[], ?3::BIGINT[], ?4::BIGINT[], ?5::BIGINT[], ?6::BYTEA[]) AS i (writer, span_us, at_us, until_us, body)
ORDER BY i.writer, i.span_us
ON CONFLICT (service, span_us, at_us, writer) DO UPDATE SET until_us = excluded.until_us, body = excluded.body

-- name: level
-- no row of the table: what may be written here
SELECT e.level FROM epoch AS e
