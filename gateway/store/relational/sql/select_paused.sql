-- no row of the table: the next accepted operations of a name whose pause is being ended, the last to expire first, and
-- how much of the pause was not added to their time; never one that has expired, or that a newer program wrote
SELECT d.row, d.deliver_until_us, p.resumed_us, p.resumed_us - {greatest}(d.since_us, d.credited_us, p.since_us)
FROM pause AS p {join} delivery AS d ON d.service = p.service AND d.operation = p.operation {join} operation AS o ON o.{row} = d.row
WHERE p.service = ?1 AND p.operation = ?2
    AND d.is_accepted AND d.service = ?1 AND d.operation = ?2
    AND (d.deliver_until_us, d.row) < (p.place_us, p.place_row) AND d.deliver_until_us > ?3 AND o.version BETWEEN {record_versions}
ORDER BY d.deliver_until_us DESC, d.row DESC
LIMIT ?4
