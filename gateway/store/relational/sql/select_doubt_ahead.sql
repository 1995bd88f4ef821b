-- no row of the table: operations in doubt whose lease begins in the future, because the clock was set back since: recovery
-- counts from its end (the conditions on one column are those of the index); never one that a newer program wrote
SELECT {record}, NULL
FROM operation AS o
WHERE state = ?1 AND state IN ('in_doubt', 'dead_letter') AND lease_until_us > ?2 AND lease_until_us > ?2 + lease_us
    AND version BETWEEN {record_versions}
LIMIT ?3
