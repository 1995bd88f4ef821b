-- no row of the table: whether a pause begins in the future
SELECT 1 FROM pause WHERE since_us > ?1 LIMIT 1
