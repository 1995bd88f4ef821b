-- no row of the table: operations in doubt that were claimed in the future, because the clock was set back since: recovery
-- counts from the end of their leases; never one that a newer program wrote
SELECT o.id FROM operation AS o
WHERE o.state = ?1 AND o.state IN ('in_doubt', 'dead_letter') AND o.claimed_us > ?2
    AND o.lease_until_us > ?2 + o.lease_us AND o.version BETWEEN {record_versions}
LIMIT ?3
