-- no row of the table: the paused operation names of a service
SELECT operation, since_us, who, why FROM pause WHERE service = ?
