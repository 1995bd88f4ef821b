-- name: select_due
-- claimed --lapse--> in_doubt, accepted --expire--> dead_letter, completed --retire--> tombstone,
-- released | tombstone --collect--> absent: the longest overdue first, and never one that a newer program wrote; each is then
-- locked, and read.
SELECT o.id FROM operation AS o
WHERE o.state = ? AND o.due_us <= ? AND o.version BETWEEN {record_versions}
ORDER BY o.due_us
LIMIT ?
-- name: select_ended -- tombstone --collect--> absent: as `select_due`, the narrow ones
SELECT o.id FROM operation AS o
WHERE o.kind IS NOT NULL AND o.remember_until_us / 60000000 <= CAST(?2 AS BIGINT) / 60000000 AND o.remember_until_us <= ?2
    AND ?1 = 'tombstone' AND o.version BETWEEN {record_versions}
ORDER BY o.remember_until_us / 60000000
LIMIT ?3
-- name: select_doubt_ahead
-- no row of the table: operations in doubt whose lease begins in the future, because the clock was set back since: recovery
-- counts from its end (the conditions on one column are those of the index); never one that a newer program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.state IN ('in_doubt', 'dead_letter') AND o.lease_until_us > ?2
    AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3
-- name: select_ahead
-- no row of the table: claims whose lease begins in the future, because the clock was set back since; never one that a newer
-- program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.due_us > ?2 AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3
-- name: prolong_operation -- no row of the table: as `prolong_delivery`, in the operation
UPDATE operation SET due_us = due_us + ?2 WHERE {row} = ?1
-- name: prolong_delivery
-- no row of the table: a pause does not count against the time in which an accepted operation has to be delivered
UPDATE delivery SET deliver_until_us = deliver_until_us + ?2, credited_us = ?3 WHERE row = ?1
-- name: select_paused_expiring
-- no row of the table: accepted operations of paused names that would expire between two times, or before a third one where
-- the pause is being ended, which something was done for since ?5; never one that a newer program wrote
SELECT d.row, {greatest}(d.since_us, d.credited_us, p.since_us), coalesce(p.resumed_us > ?5, FALSE)
FROM pause AS p {join} delivery AS d ON d.service = p.service AND d.operation = p.operation {join} operation AS o ON o.{row} = d.row
WHERE d.is_accepted AND d.service = p.service AND d.operation = p.operation
    AND d.deliver_until_us > ?1 AND d.deliver_until_us <= CASE WHEN p.resumed_us > ?5 THEN ?3 ELSE CAST(?2 AS BIGINT) END
    AND o.version BETWEEN {record_versions}
LIMIT ?4
-- name: find_pause_ahead -- no row of the table: whether a pause begins in the future
SELECT 1 FROM pause WHERE since_us > ?1 LIMIT 1
-- name: select_old_activity
-- no row of the table: counts that are old, or kept for too long, because a clock was set back; none is still needed
SELECT service, span_us, at_us, writer, 1 = 0 FROM activity WHERE until_us <= ?1 OR until_us > ?1 + {activity_ahead_us} LIMIT ?2
-- name: delete_activity -- no row of the table: counts that nobody looks at any more
DELETE FROM activity WHERE service = ?1 AND span_us = ?2 AND at_us = ?3 AND writer = ?4
-- name: select_old_audits -- no row of the table: expired audits, and whether their record still exists
SELECT row, EXISTS (SELECT 1 FROM operation WHERE operation.id = audit.id)
FROM audit
WHERE keep_until_us <= ?
ORDER BY keep_until_us
LIMIT ?
-- name: update_audit -- no row of the table: keep the audit for longer, because its record still exists
UPDATE audit SET keep_until_us = ? WHERE row = ?
-- name: delete_audit -- no row of the table: an expired audit whose record is gone
DELETE FROM audit WHERE row = ?
-- name: select_old_contents
-- no row of the table: contents to check, and whether their operation may still have an effect
SELECT c.digest, c.id, EXISTS (
    SELECT 1 FROM operation AS o
    WHERE o.id = c.id AND o.fingerprint_digest = c.fingerprint
        AND o.state NOT IN ('released', 'completed', 'tombstone')
)
FROM content AS c
WHERE c.check_us <= ?
ORDER BY c.check_us
LIMIT ?
-- name: update_content -- no row of the table: check a content again later
UPDATE content SET check_us = ? WHERE digest = ? AND id = ?
-- name: delete_content -- no row of the table: a content that its operation does not hold any more
DELETE FROM content WHERE digest = ? AND id = ?
-- name: select_old_recoveries -- no row of the table: recovery leases to check, and whether their doubt still exists
SELECT id, EXISTS (
    SELECT 1 FROM operation
    WHERE operation.id = recovery.id AND operation.token = recovery.token AND state IN ('claimed', 'in_doubt')
)
FROM recovery
WHERE check_us <= ?
ORDER BY check_us
LIMIT ?
-- name: update_recovery -- no row of the table: the doubt is not over; check again later
UPDATE recovery SET check_us = ? WHERE id = ?
-- name: delete_recovery -- no row of the table: the doubt is over
DELETE FROM recovery WHERE id = ?
-- name: select_old_witnesses
-- no row of the table: witnesses to check, and whether they were raised since the last check
SELECT link, number > kept_number FROM witness WHERE check_us <= ? ORDER BY check_us LIMIT ?
-- name: keep_witness -- no row of the table: a witness that was raised is kept for another period
UPDATE witness SET kept_number = number, check_us = ?1 WHERE link = ?2
-- name: delete_witness -- no row of the table: a witness that was not raised for long
DELETE FROM witness WHERE link = ?
