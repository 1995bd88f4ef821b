-- no row of the table: what may be dispatched now under an operation name, the longest due first. What has expired is left
-- out, written or not, and what waits for its turn in a lane.
SELECT d.next_attempt_us, d.row
FROM delivery AS d {join} operation AS o ON o.{row} = d.row
WHERE d.is_accepted AND NOT d.is_behind AND d.service = ?1 AND d.operation = ?2 AND d.next_attempt_us <= ?3 AND d.deliver_until_us > ?3
    AND o.version BETWEEN {record_versions}
ORDER BY d.next_attempt_us
LIMIT ?4
