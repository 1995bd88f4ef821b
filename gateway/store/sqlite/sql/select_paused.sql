-- no row of the table: the accepted operations of a paused name, the last to expire first, before a place in this order;
-- never one that has expired, or that a newer program wrote
SELECT d.row, d.deliver_until_us, max(d.since_us, d.credited_us, p.since_us)
FROM pause AS p CROSS JOIN delivery AS d CROSS JOIN operation AS o ON o.row = d.row
WHERE p.service = ?1 AND p.operation = ?2
    AND d.is_accepted AND d.service = ?1 AND d.operation = ?2
    AND (d.deliver_until_us, d.row) < (?3, ?4) AND d.deliver_until_us > ?5 AND o.version = ?6
ORDER BY d.deliver_until_us DESC, d.row DESC
LIMIT ?7
