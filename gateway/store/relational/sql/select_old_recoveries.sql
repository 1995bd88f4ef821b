-- no row of the table: recovery leases to check, and whether their doubt still exists
SELECT id, EXISTS (
    SELECT 1 FROM operation
    WHERE operation.id = recovery.id AND operation.token = recovery.token AND state IN ('claimed', 'in_doubt')
)
FROM recovery
WHERE check_us <= ?
ORDER BY check_us
LIMIT ?
