-- no row of the table: audits whose time is over, and whether their record is still there
SELECT row, EXISTS (SELECT 1 FROM operation WHERE operation.id = audit.id)
FROM audit
WHERE keep_until_us <= ?
ORDER BY keep_until_us
LIMIT ?
