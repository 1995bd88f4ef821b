-- no row of the table: audits of pauses in their order
SELECT row, service, operation, who, why, is_resumed FROM pause_audit WHERE row > ? ORDER BY row LIMIT ?
