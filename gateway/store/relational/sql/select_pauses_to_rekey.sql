-- no row of the table: pauses in their order
SELECT service, operation, who, why FROM pause WHERE (service, operation) > (?, ?) ORDER BY service, operation LIMIT ?
