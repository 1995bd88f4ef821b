-- name: count_pending -- no row of the table: how many accepted operations a scope has on a route, up to a limit
SELECT count(*) FROM (
    SELECT 1 FROM delivery
    WHERE is_accepted AND service = ?1 AND route = ?2 AND scope_digest = ?3 AND deliver_until_us > ?4
    LIMIT ?5
) AS found
-- name: delete_pause -- no row of the table: the pause is over
DELETE FROM pause WHERE service = ? AND operation = ?
-- name: delete_pause_audits -- no row of the table: pauses and their ends of long ago
DELETE FROM pause_audit WHERE service = ? AND at_us < ?
-- name: find_due
-- no row of the table: what may be dispatched now of a route under an operation name, the longest due first. What has expired
-- is left out, written or not, and what waits for its turn in a lane. Behind them, of what is due last, that which waits since
-- a time in the future, because the clock was set back.
SELECT next_attempt_us, row FROM (
    SELECT d.next_attempt_us, d.row
    FROM delivery AS d {join} operation AS o ON o.{row} = d.row
    WHERE d.is_accepted AND NOT d.is_behind AND d.service = ?1 AND d.operation = ?2 AND d.route = ?3
        AND d.next_attempt_us <= ?4 AND d.deliver_until_us > ?4 AND o.version BETWEEN {record_versions}
    ORDER BY d.next_attempt_us
    LIMIT ?5
) AS due
UNION ALL
SELECT d.next_attempt_us, d.row
FROM (
    SELECT next_attempt_us, row, since_us
    FROM delivery
    WHERE is_accepted AND NOT is_behind AND service = ?1 AND operation = ?2 AND route = ?3
        AND next_attempt_us > ?4 AND deliver_until_us > ?4
    ORDER BY next_attempt_us DESC
    LIMIT {ahead_max}
) AS d {join} operation AS o ON o.{row} = d.row
WHERE {greatest}(d.since_us, o.claimed_us) > ?4 + {step_us} AND o.version BETWEEN {record_versions}
-- name: insert_pause
-- no row of the table: nothing of this operation name is dispatched from now on, also where a pause was being ended
INSERT INTO pause (service, operation, since_us, who, why, place_row) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (service, operation) DO UPDATE
SET resumed_us = NULL, place_us = 9223372036854775807, place_row = excluded.place_row
WHERE pause.resumed_us IS NOT NULL
-- name: move_pauses
-- no row of the table: a pause that begins in the future, because the clock was set back, begins now
UPDATE pause SET since_us = ?1 WHERE since_us > ?1
-- name: resume_pause
-- no row of the table: a pause is being ended, and counts up to now; where that has rested since ?4, it begins anew with those
-- that it came to first, because they have waited since
UPDATE pause SET resumed_us = ?3,
    place_us = CASE WHEN coalesce(resumed_us, 0) < ?4 THEN 9223372036854775807 ELSE place_us END,
    place_row = CASE WHEN coalesce(resumed_us, 0) < ?4 THEN ?5 ELSE place_row END
WHERE service = ?1 AND operation = ?2
-- name: select_lanes_stopped
-- no row of the table: how many lanes of each route are stopped, and since when the first one is
SELECT route, count(*), min(stopped_us)
FROM (
    SELECT route, stopped_us FROM delivery
    WHERE stopped_us IS NOT NULL AND NOT is_behind AND service = ?
    LIMIT ?
) AS stopped
GROUP BY route
-- name: select_line -- no row of the table: the first two operations in the line of a lane, in their order
SELECT d.lane, o.id, d.is_behind, d.lane_rank
FROM delivery AS d {join} operation AS o ON o.{row} = d.row
WHERE d.lane = {key} AND d.lane_rank IS NOT NULL
ORDER BY d.lane_rank
LIMIT 2
-- name: select_next_route -- no row of the table: the next route of which something waits under an operation name
SELECT d.route
FROM delivery AS d
WHERE d.is_accepted AND NOT d.is_behind AND d.service = ?1 AND d.operation = ?2 AND d.route > ?3
ORDER BY d.route
LIMIT 1
-- name: select_pause_audits -- no row of the table: the last pauses of a service and their ends, the latest first
SELECT at_us, operation, is_resumed, who, why FROM pause_audit WHERE service = ? ORDER BY at_us DESC, row DESC LIMIT ?
-- name: select_paused
-- no row of the table: the next accepted operations of a name whose pause is being ended, the last to expire first, up to
-- when the pause counts for each, and by how much its time has to be moved for that: back where a sweep has added more than
-- the pause came to; never one that has expired, or that a newer program wrote
SELECT d.row, d.deliver_until_us, {greatest}(d.since_us, p.resumed_us, p.since_us),
    {greatest}(d.since_us, p.resumed_us, p.since_us) - {greatest}(d.since_us, d.credited_us, p.since_us)
FROM pause AS p {join} delivery AS d ON d.service = p.service AND d.operation = p.operation {join} operation AS o ON o.{row} = d.row
WHERE p.service = ?1 AND p.operation = ?2
    AND d.is_accepted AND d.service = ?1 AND d.operation = ?2
    AND (d.deliver_until_us, d.row) < (p.place_us, p.place_row) AND d.deliver_until_us > ?3 AND o.version BETWEEN {record_versions}
ORDER BY d.deliver_until_us DESC, d.row DESC
LIMIT ?4
-- name: select_pauses -- no row of the table: the paused operation names of a service
SELECT operation, since_us, who, why FROM pause WHERE service = ?
-- name: update_pause -- no row of the table: how far the end of a pause got
UPDATE pause SET place_us = ?3, place_row = ?4 WHERE service = ?1 AND operation = ?2
