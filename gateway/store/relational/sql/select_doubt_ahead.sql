-- no row of the table: operations in doubt that were claimed in the future, because the clock was set back since: recovery
-- counts from the end of their leases; never one that a newer program wrote
SELECT {record}, NULL
FROM operation AS o
WHERE state = ?1 AND state IN ('in_doubt', 'dead_letter') AND claimed_us > ?2 AND lease_until_us > ?2 + lease_us
    AND version BETWEEN {record_versions}
LIMIT ?3
