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
