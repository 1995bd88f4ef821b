-- no row of the table: the paused operation names of a service
SELECT operation, since_us FROM pause WHERE service = ?
