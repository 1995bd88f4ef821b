-- no row of the table: recovery leases to look after, and whether the doubt that they are for is still there
SELECT id, EXISTS (
    SELECT 1 FROM operation
    WHERE operation.id = recovery.id AND operation.token = recovery.token AND state IN ('claimed', 'in_doubt')
)
FROM recovery
WHERE check_us <= ?
ORDER BY check_us
LIMIT ?
