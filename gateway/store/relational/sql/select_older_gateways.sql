-- no row of the table: the running gateways of programs of lower levels. A time in the future is from before the clock was
-- set back.
SELECT id, host, level FROM gateway WHERE level < ?1 AND seen_us >= ?2 ORDER BY host, id
