-- no row of the table: expired audits, and whether their record still exists
SELECT row, EXISTS (SELECT 1 FROM operation WHERE operation.id = audit.id)
FROM audit
WHERE keep_until_us <= ?
ORDER BY keep_until_us
LIMIT ?
