-- no row of the table: how identities were made at the last agreement
SELECT operation, recipe FROM recipe
