-- no row of the table: operations in doubt whose lease begins in the future, because the clock was set back since: recovery
-- counts from its end (the conditions on one column are those of the index); never one that a newer program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.state IN ('in_doubt', 'dead_letter') AND o.lease_until_us > ?2
    AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3
