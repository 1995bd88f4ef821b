-- no row of the table: accepted operations of paused names that would expire between two times, or before a third one where
-- the pause is being ended, which something was done for since ?5; never one that a newer program wrote
SELECT d.row, {greatest}(d.since_us, d.credited_us, p.since_us), coalesce(p.resumed_us > ?5, FALSE)
FROM pause AS p {join} delivery AS d ON d.service = p.service AND d.operation = p.operation {join} operation AS o ON o.{row} = d.row
WHERE d.is_accepted AND d.service = p.service AND d.operation = p.operation
    AND d.deliver_until_us > ?1 AND d.deliver_until_us <= CASE WHEN p.resumed_us > ?5 THEN ?3 ELSE CAST(?2 AS BIGINT) END
    AND o.version BETWEEN {record_versions}
LIMIT ?4
