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
